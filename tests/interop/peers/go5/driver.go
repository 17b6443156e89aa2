package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const nothingNew = 40401

var resolutions = map[string]rmq.TransactionResolution{
	"unknown": rmq.UNKNOWN, "commit": rmq.COMMIT, "rollback": rmq.ROLLBACK,
}

type client interface {
	Start() error
	GracefulStop() error
}

type driver struct {
	lines    *wire
	lock     sync.Mutex
	clients  map[string]client
	scripts  map[string][]string
	asked    map[string]int
	received map[string]*rmq.MessageView
}

func newDriver(lines *wire) *driver {
	return &driver{
		lines:    lines,
		clients:  map[string]client{},
		scripts:  map[string][]string{},
		asked:    map[string]int{},
		received: map[string]*rmq.MessageView{},
	}
}

func (d *driver) run(asked command) (fields, error) {
	switch asked.Do {
	case "start_producer":
		return d.startProducer(asked)
	case "start_simple_consumer":
		return d.startSimpleConsumer(asked)
	case "start_push_consumer":
		return d.startPushConsumer(asked)
	case "script":
		d.lock.Lock()
		defer d.lock.Unlock()
		d.scripts[asked.Client+" "+asked.Key] = asked.Checks
		return fields{}, nil
	case "send", "send_in_transaction":
		return d.send(asked)
	case "receive":
		return d.receive(asked)
	case "ack":
		consumer := d.client(asked).(rmq.SimpleConsumer)
		return fields{}, consumer.Ack(context.Background(), d.message(asked))
	case "change_invisible":
		consumer := d.client(asked).(rmq.SimpleConsumer)
		duration := milliseconds(asked.InvisibleMs)
		return fields{}, consumer.ChangeInvisibleDuration(d.message(asked), duration)
	case "stop":
		return fields{}, d.client(asked).GracefulStop()
	}
	return nil, fmt.Errorf("no command %s", asked.Do)
}

func (d *driver) startProducer(asked command) (fields, error) {
	producer, problem := rmq.NewProducer(
		configuration(asked),
		rmq.WithTopics(asked.Topics...),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: d.checker(asked.Client)}),
	)
	return d.started(asked, producer, problem)
}

func (d *driver) startSimpleConsumer(asked command) (fields, error) {
	consumer, problem := rmq.NewSimpleConsumer(
		configuration(asked),
		rmq.WithSimpleAwaitDuration(milliseconds(asked.WaitMs)),
		rmq.WithSimpleSubscriptionExpressions(subscription(asked)),
	)
	return d.started(asked, consumer, problem)
}

func (d *driver) startPushConsumer(asked command) (fields, error) {
	consumer, problem := rmq.NewPushConsumer(
		configuration(asked),
		rmq.WithPushSubscriptionExpressions(subscription(asked)),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: d.listener(asked)}),
	)
	return d.started(asked, consumer, problem)
}

func (d *driver) started(asked command, made client, problem error) (fields, error) {
	if problem != nil {
		return nil, problem
	}
	if problem := made.Start(); problem != nil {
		return nil, problem
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	d.clients[asked.Client] = made
	// The client keeps its id to itself.
	return fields{"client_id": asked.Client}, nil
}

// It answers as it was told, key by key; the last answer is repeated.
func (d *driver) checker(name string) func(*rmq.MessageView) rmq.TransactionResolution {
	return func(message *rmq.MessageView) rmq.TransactionResolution {
		key := name + " " + message.GetKeys()[0]
		d.lock.Lock()
		d.asked[key]++
		number, told := d.asked[key], d.scripts[key]
		d.lock.Unlock()
		facts := fields{"client": name, "number": number, "view": view(message)}
		facts["event"] = "asked"
		d.lines.write(facts)
		if len(told) == 0 {
			return rmq.UNKNOWN
		}
		return resolutions[told[min(number, len(told))-1]]
	}
}

// It refuses a key as often as it was told, then accepts it.
func (d *driver) listener(asked command) func(*rmq.MessageView) rmq.ConsumerResult {
	return func(message *rmq.MessageView) rmq.ConsumerResult {
		key := message.GetKeys()[0]
		d.lock.Lock()
		refused := asked.Fail[key] > 0
		if refused {
			asked.Fail[key]--
		}
		d.lock.Unlock()
		facts := fields{"client": asked.Client, "accepted": !refused, "view": view(message)}
		facts["event"] = "shown"
		d.lines.write(facts)
		if refused {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
}

func (d *driver) send(asked command) (fields, error) {
	producer := d.client(asked).(rmq.Producer)
	message, problem := asked.Message.message()
	if problem != nil {
		return nil, problem
	}
	if asked.Do == "send" {
		receipts, problem := producer.Send(context.Background(), message)
		if problem != nil {
			return nil, problem
		}
		return sent(receipts), nil
	}
	transaction := producer.BeginTransaction()
	receipts, problem := producer.SendWithTransaction(context.Background(), message, transaction)
	if problem != nil {
		return nil, problem
	}
	switch asked.Then {
	case "commit":
		problem = transaction.Commit()
	case "rollback":
		problem = transaction.RollBack()
	}
	return sent(receipts), problem
}

func (d *driver) receive(asked command) (fields, error) {
	consumer := d.client(asked).(rmq.SimpleConsumer)
	duration := milliseconds(asked.InvisibleMs)
	found, problem := consumer.Receive(context.Background(), asked.Max, duration)
	if status, is := rmq.AsErrRpcStatus(problem); is && status.GetCode() == nothingNew {
		// This client tells an empty answer as an error.
		return fields{"messages": []fields{}}, nil
	}
	if problem != nil {
		return nil, problem
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	rows := []fields{}
	for _, message := range found {
		handle := strconv.Itoa(len(d.received))
		d.received[handle] = message
		rows = append(rows, fields{"handle": handle, "view": view(message)})
	}
	return fields{"messages": rows}, nil
}

func (d *driver) client(asked command) client {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.clients[asked.Client]
}

func (d *driver) message(asked command) *rmq.MessageView {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.received[asked.Handle]
}

func configuration(asked command) *rmq.Config {
	return &rmq.Config{
		Endpoint:      asked.Endpoints,
		ConsumerGroup: asked.Group,
		Credentials:   &credentials.SessionCredentials{},
	}
}

func subscription(asked command) map[string]*rmq.FilterExpression {
	return map[string]*rmq.FilterExpression{
		asked.Topic: rmq.NewFilterExpression(asked.Expression),
	}
}
