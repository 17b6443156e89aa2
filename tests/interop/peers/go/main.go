// The stock Go client, commanded by JSON lines.
//
// Each line on standard input is a command with an id; each line on standard output is the answer to
// one, or an event without a request. Commands run side by side, since one may hang on purpose.
// When the input ends, everything does.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

const lineBytesMax = 16 << 20

type request struct {
	ID            int64          `json:"id"`
	Do            string         `json:"do"`
	Client        string         `json:"client"`
	Group         string         `json:"group"`
	NameServer    string         `json:"name_server"`
	Transactional bool           `json:"transactional"`
	Topic         string         `json:"topic"`
	Expression    string         `json:"expression"`
	Model         string         `json:"model"`
	FromWhere     string         `json:"from_where"`
	Orderly       bool           `json:"orderly"`
	Fail          map[string]int `json:"fail"`
	MaxReconsume  *int32         `json:"max_reconsume_times"`
	Retries       *int           `json:"retries"`
	TraceTopic    string         `json:"trace_topic"`
	Mode          string         `json:"mode"`
	Queue         *int           `json:"queue"`
	Messages      []outgoing     `json:"messages"`
	Message       *outgoing      `json:"message"`
	Key           string         `json:"key"`
	Local         string         `json:"local"`
	Checks        []string       `json:"checks"`
	Answer        string         `json:"answer"`
}

type facts map[string]any

var (
	writing sync.Mutex
	out     = json.NewEncoder(os.Stdout)
)

func write(line facts) {
	writing.Lock()
	defer writing.Unlock()
	if err := out.Encode(line); err != nil {
		os.Exit(1)
	}
}

func event(name string, more facts) {
	more["event"] = name
	write(more)
}

func main() {
	event("ready", facts{"version": clientVersion(), "pid": os.Getpid()})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, lineBytesMax)
	for lines.Scan() {
		var command request
		if err := json.Unmarshal(lines.Bytes(), &command); err != nil {
			fmt.Fprintln(os.Stderr, "no command:", err)
			os.Exit(2)
		}
		go answer(command)
	}
}

func answer(command request) {
	// A listener that panics as scripted takes its caller with it, as it would in a user's program.
	defer func() {
		if problem := recover(); problem != nil {
			write(refusal(command, "panic", fmt.Sprint(problem)))
		}
	}()
	result, err := run(command)
	if err != nil {
		write(refusal(command, fmt.Sprintf("%T", err), err.Error()))
		return
	}
	write(facts{"id": command.ID, "ok": result})
}

func refusal(command request, kind, message string) facts {
	return facts{"id": command.ID, "error": facts{"type": kind, "message": message, "code": nil}}
}

func run(command request) (facts, error) {
	switch command.Do {
	case "start_producer":
		return startProducer(command)
	case "script":
		return script(command)
	case "release":
		return release(command)
	case "send":
		return send(command)
	case "send_in_transaction":
		return sendInTransaction(command)
	case "start_push_consumer":
		return startPushConsumer(command)
	case "stop":
		return stop(command)
	}
	return nil, fmt.Errorf("no command %s", command.Do)
}
