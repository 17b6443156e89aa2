package main

import (
	"encoding/base64"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

type draft struct {
	Topic        string            `json:"topic"`
	Key          string            `json:"key"`
	Body         string            `json:"body"`
	Tag          string            `json:"tag"`
	Properties   map[string]string `json:"properties"`
	MessageGroup string            `json:"message_group"`
	DeliverAtMs  int64             `json:"deliver_at_ms"`
}

func (d draft) message() (*rmq.Message, error) {
	body, problem := base64.StdEncoding.DecodeString(d.Body)
	if problem != nil {
		return nil, problem
	}
	message := &rmq.Message{Topic: d.Topic, Body: body}
	message.SetKeys(d.Key)
	if d.Tag != "" {
		message.SetTag(d.Tag)
	}
	for name, value := range d.Properties {
		message.AddProperty(name, value)
	}
	if d.MessageGroup != "" {
		message.SetMessageGroup(d.MessageGroup)
	}
	if d.DeliverAtMs != 0 {
		message.SetDelayTimestamp(time.UnixMilli(d.DeliverAtMs))
	}
	return message, nil
}

func view(message *rmq.MessageView) fields {
	properties := message.GetProperties()
	if properties == nil {
		properties = map[string]string{}
	}
	return fields{
		"message_id":    message.GetMessageId(),
		"topic":         message.GetTopic(),
		"body":          base64.StdEncoding.EncodeToString(message.GetBody()),
		"keys":          message.GetKeys(),
		"tag":           message.GetTag(),
		"properties":    properties,
		"message_group": message.GetMessageGroup(),
		"attempt":       message.GetDeliveryAttempt(),
	}
}

func sent(receipts []*rmq.SendReceipt) fields {
	told := fields{"message_id": receipts[0].MessageID}
	if receipts[0].TransactionId != "" {
		told["transaction_id"] = receipts[0].TransactionId
	}
	return told
}

func milliseconds(count int64) time.Duration {
	return time.Duration(count) * time.Millisecond
}
