// RocketMQ's own 5.x Go client, driven by JSON lines: a command with an id in each line of the
// input, its answer or an event in each line of the output. The process ends with its input.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

const lineBytesMax = 16 << 20

type fields = map[string]any

type wire struct {
	lock sync.Mutex
	out  *os.File
}

func (w *wire) write(line fields) {
	text, problem := json.Marshal(line)
	if problem != nil {
		panic(problem)
	}
	w.lock.Lock()
	defer w.lock.Unlock()
	fmt.Fprintf(w.out, "%s\n", text)
}

type command struct {
	ID          int64          `json:"id"`
	Do          string         `json:"do"`
	Client      string         `json:"client"`
	Endpoints   string         `json:"endpoints"`
	Topics      []string       `json:"topics"`
	Topic       string         `json:"topic"`
	Group       string         `json:"group"`
	Expression  string         `json:"expression"`
	WaitMs      int64          `json:"wait_ms"`
	Max         int32          `json:"max"`
	InvisibleMs int64          `json:"invisible_ms"`
	Handle      string         `json:"handle"`
	Fail        map[string]int `json:"fail"`
	Message     draft          `json:"message"`
	Then        string         `json:"then"`
	Key         string         `json:"key"`
	Checks      []string       `json:"checks"`
	TLS         bool           `json:"tls"`
}

func main() {
	lines := &wire{out: os.Stdout}
	// A client's own output must not end up between our lines.
	os.Stdout = os.Stderr
	driver := newDriver(lines)
	lines.write(fields{"event": "ready", "version": "5.1.3"})
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, lineBytesMax)
	for input.Scan() {
		var asked command
		if problem := json.Unmarshal(input.Bytes(), &asked); problem != nil {
			panic(problem)
		}
		go answer(driver, lines, asked)
	}
	os.Exit(0)
}

func answer(driver *driver, lines *wire, asked command) {
	told, problem := driver.run(asked)
	if problem == nil {
		lines.write(fields{"id": asked.ID, "ok": told})
		return
	}
	facts := fields{"type": fmt.Sprintf("%T", problem), "message": problem.Error(), "code": nil}
	if status, is := rmq.AsErrRpcStatus(problem); is {
		facts["code"] = status.GetCode()
	}
	lines.write(fields{"id": asked.ID, "error": facts})
}
