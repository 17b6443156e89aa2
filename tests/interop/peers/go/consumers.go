package main

import (
	"context"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

var consumers = map[string]rocketmq.PushConsumer{}

var models = map[string]consumer.MessageModel{
	"CLUSTERING":   consumer.Clustering,
	"BROADCASTING": consumer.BroadCasting,
}

var starts = map[string]consumer.ConsumeFromWhere{
	"CONSUME_FROM_FIRST_OFFSET": consumer.ConsumeFromFirstOffset,
	"CONSUME_FROM_LAST_OFFSET":  consumer.ConsumeFromLastOffset,
}

// taking reports each message, and refuses the first deliveries of some keys.
type taking struct {
	client  string
	orderly bool
	lock    sync.Mutex
	left    map[string]int
}

func (t *taking) refuses(key string) bool {
	t.lock.Lock()
	defer t.lock.Unlock()
	if t.left[key] == 0 {
		return false
	}
	t.left[key]--
	return true
}

func (t *taking) take(
	_ context.Context, messages ...*primitive.MessageExt,
) (consumer.ConsumeResult, error) {
	result := consumer.ConsumeSuccess
	for _, message := range messages {
		refused := t.refuses(keysOf(&message.Message))
		event("message", facts{
			"client": t.client, "accepted": !refused, "message": received(message),
		})
		if refused && t.orderly {
			result = consumer.SuspendCurrentQueueAMoment
		} else if refused {
			result = consumer.ConsumeRetryLater
		}
	}
	return result, nil
}

func startPushConsumer(command request) (facts, error) {
	options := []consumer.Option{
		consumer.WithGroupName(command.Group),
		consumer.WithNameServer(primitive.NamesrvAddr{command.NameServer}),
		consumer.WithInstance(instance(command.Client)),
		consumer.WithConsumerModel(models[command.Model]),
		consumer.WithConsumeFromWhere(starts[command.FromWhere]),
		consumer.WithConsumerOrder(command.Orderly),
	}
	if command.MaxReconsume != nil {
		options = append(options, consumer.WithMaxReconsumeTimes(*command.MaxReconsume))
	}
	if command.TraceTopic != "" {
		options = append(options, consumer.WithTrace(tracing(command)))
	}
	one, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return nil, err
	}
	listening := &taking{client: command.Client, orderly: command.Orderly, left: command.Fail}
	chosen := consumer.MessageSelector{Type: consumer.TAG, Expression: command.Expression}
	if err := one.Subscribe(command.Topic, chosen, listening.take); err != nil {
		return nil, err
	}
	if err := one.Start(); err != nil {
		return nil, err
	}
	clientsLock.Lock()
	defer clientsLock.Unlock()
	consumers[command.Client] = one
	return facts{"client_id": instance(command.Client)}, nil
}
