package main

import (
	"encoding/base64"
	"runtime/debug"
	"strings"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

const module = "github.com/apache/rocketmq-client-go/v2"

type outgoing struct {
	Topic      string            `json:"topic"`
	Body       string            `json:"body"`
	Keys       string            `json:"keys"`
	Tags       string            `json:"tags"`
	Properties map[string]string `json:"properties"`
	DelayLevel int               `json:"delay_level"`
}

func (fields outgoing) message() (*primitive.Message, error) {
	body, err := base64.StdEncoding.DecodeString(fields.Body)
	if err != nil {
		return nil, err
	}
	message := primitive.NewMessage(fields.Topic, body)
	for name, value := range fields.Properties {
		message.WithProperty(name, value)
	}
	if fields.Keys != "" {
		message.WithKeys(strings.Split(fields.Keys, " "))
	}
	if fields.Tags != "" {
		message.WithTag(fields.Tags)
	}
	if fields.DelayLevel > 0 {
		message.WithDelayTimeLevel(fields.DelayLevel)
	}
	return message, nil
}

// keysOf cuts off the separator that this client writes after each key.
func keysOf(message *primitive.Message) string {
	return strings.TrimSpace(message.GetKeys())
}

func received(message *primitive.MessageExt) facts {
	queue := -1
	if message.Queue != nil {
		queue = message.Queue.QueueId
	}
	return facts{
		"message_id":        message.MsgId,
		"offset_message_id": message.OffsetMsgId,
		"topic":             message.Topic,
		"queue":             queue,
		"queue_offset":      message.QueueOffset,
		"log_offset":        message.CommitLogOffset,
		"keys":              textOrNull(keysOf(&message.Message)),
		"tags":              textOrNull(message.GetTags()),
		"properties":        message.GetProperties(),
		"body":              base64.StdEncoding.EncodeToString(message.Body),
		"reconsume_times":   message.ReconsumeTimes,
		"stored_at_ms":      message.StoreTimestamp,
		"born_at_ms":        message.BornTimestamp,
		"prepared_offset":   message.PreparedTransactionOffset,
		"sys_flag":          message.SysFlag,
	}
}

func textOrNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

var statuses = map[primitive.SendStatus]string{
	primitive.SendOK:                "SEND_OK",
	primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
	primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
	primitive.SendUnknownError:      "UNKNOWN",
}

func sent(result *primitive.SendResult) facts {
	fields := facts{
		"status":            statuses[result.Status],
		"message_id":        result.MsgID,
		"offset_message_id": result.OffsetMsgID,
		"transaction_id":    textOrNull(result.TransactionID),
		"queue_offset":      result.QueueOffset,
	}
	if result.MessageQueue != nil {
		fields["queue"] = result.MessageQueue.QueueId
		fields["broker"] = result.MessageQueue.BrokerName
	}
	return fields
}

func clientVersion() string {
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dependency := range build.Deps {
			if dependency.Path == module {
				return dependency.Version
			}
		}
	}
	return "?"
}
