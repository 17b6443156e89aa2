package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

type transactional struct {
	rocketmq.TransactionProducer
	listener *listener
}

var (
	clientsLock    sync.Mutex
	producers      = map[string]rocketmq.Producer{}
	transactionals = map[string]transactional{}
)

// selector obeys a message that names its queue, and otherwise goes round.
type selector struct {
	round producer.QueueSelector
}

func (s selector) Select(
	message *primitive.Message, queues []*primitive.MessageQueue, lastBroker string,
) *primitive.MessageQueue {
	if message.Queue == nil {
		return s.round.Select(message, queues, lastBroker)
	}
	for _, queue := range queues {
		if queue.QueueId == message.Queue.QueueId {
			return queue
		}
	}
	return nil
}

func instance(client string) string {
	return fmt.Sprintf("%s-%d", client, os.Getpid())
}

func startProducer(command request) (facts, error) {
	options := []producer.Option{
		producer.WithGroupName(command.Group),
		producer.WithNameServer(primitive.NamesrvAddr{command.NameServer}),
		producer.WithInstanceName(instance(command.Client)),
		producer.WithQueueSelector(selector{producer.NewRoundRobinQueueSelector()}),
	}
	if command.Retries != nil {
		options = append(options, producer.WithRetry(*command.Retries))
	}
	if command.TraceTopic != "" {
		options = append(options, producer.WithTrace(tracing(command)))
	}
	if command.Transactional {
		return startTransactional(command, options)
	}
	one, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	if err := one.Start(); err != nil {
		return nil, err
	}
	clientsLock.Lock()
	defer clientsLock.Unlock()
	producers[command.Client] = one
	return facts{"client_id": instance(command.Client)}, nil
}

func tracing(command request) *primitive.TraceConfig {
	return &primitive.TraceConfig{
		TraceTopic:   command.TraceTopic,
		Access:       primitive.Local,
		NamesrvAddrs: []string{command.NameServer},
		Resolver:     primitive.NewPassthroughResolver([]string{command.NameServer}),
	}
}

func startTransactional(command request, options []producer.Option) (facts, error) {
	scripted := newListener(command.Client)
	one, err := rocketmq.NewTransactionProducer(scripted, options...)
	if err != nil {
		return nil, err
	}
	if err := one.Start(); err != nil {
		return nil, err
	}
	clientsLock.Lock()
	defer clientsLock.Unlock()
	transactionals[command.Client] = transactional{one, scripted}
	return facts{"client_id": instance(command.Client)}, nil
}

func transactionalOf(command request) (transactional, error) {
	clientsLock.Lock()
	defer clientsLock.Unlock()
	one, found := transactionals[command.Client]
	if !found {
		return one, fmt.Errorf("no transaction producer %s", command.Client)
	}
	return one, nil
}

func script(command request) (facts, error) {
	one, err := transactionalOf(command)
	if err != nil {
		return nil, err
	}
	one.listener.tell(command.Key, command.Local, command.Checks)
	return facts{}, nil
}

func release(command request) (facts, error) {
	one, err := transactionalOf(command)
	if err != nil {
		return nil, err
	}
	one.listener.gate(command.Key) <- command.Answer
	return facts{}, nil
}

var states = map[primitive.LocalTransactionState]string{
	primitive.CommitMessageState:   "COMMIT_MESSAGE",
	primitive.RollbackMessageState: "ROLLBACK_MESSAGE",
	primitive.UnknowState:          "UNKNOW",
}

func sendInTransaction(command request) (facts, error) {
	one, err := transactionalOf(command)
	if err != nil {
		return nil, err
	}
	message, err := command.Message.message()
	if err != nil {
		return nil, err
	}
	result, err := one.SendMessageInTransaction(context.Background(), message)
	if err != nil {
		return nil, err
	}
	fields := sent(result.SendResult)
	fields["local_state"] = states[result.State]
	return fields, nil
}

func send(command request) (facts, error) {
	clientsLock.Lock()
	one, found := producers[command.Client]
	clientsLock.Unlock()
	if !found {
		return nil, fmt.Errorf("no producer %s", command.Client)
	}
	messages := make([]*primitive.Message, 0, len(command.Messages))
	for _, fields := range command.Messages {
		message, err := fields.message()
		if err != nil {
			return nil, err
		}
		if command.Queue != nil {
			message.Queue = &primitive.MessageQueue{Topic: fields.Topic, QueueId: *command.Queue}
		}
		messages = append(messages, message)
	}
	switch command.Mode {
	case "async":
		return sendLater(one, messages)
	case "oneway":
		return facts{"status": "ONEWAY"}, one.SendOneWay(context.Background(), messages...)
	}
	result, err := one.SendSync(context.Background(), messages...)
	if err != nil {
		return nil, err
	}
	return sent(result), nil
}

func sendLater(one rocketmq.Producer, messages []*primitive.Message) (facts, error) {
	type outcome struct {
		result *primitive.SendResult
		err    error
	}
	done := make(chan outcome, 1)
	err := one.SendAsync(context.Background(),
		func(_ context.Context, result *primitive.SendResult, err error) {
			done <- outcome{result, err}
		}, messages...)
	if err != nil {
		return nil, err
	}
	end := <-done
	if end.err != nil {
		return nil, end.err
	}
	return sent(end.result), nil
}

func stop(command request) (facts, error) {
	clientsLock.Lock()
	defer clientsLock.Unlock()
	if one, found := producers[command.Client]; found {
		delete(producers, command.Client)
		return facts{}, one.Shutdown()
	}
	if one, found := transactionals[command.Client]; found {
		delete(transactionals, command.Client)
		return facts{}, one.Shutdown()
	}
	if one, found := consumers[command.Client]; found {
		delete(consumers, command.Client)
		return facts{}, one.Shutdown()
	}
	return nil, fmt.Errorf("no client %s", command.Client)
}
