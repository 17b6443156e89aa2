package main

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

const unscripted = "unknown"

// listener does as it was told, key by key. An answer is commit, rollback, unknown, throw,
// sleep:<ms>:<answer>, executed:<answer>, which is unknown as long as the local transaction has not
// run, or hang: until somebody releases the key with the answer to give.
type listener struct {
	client   string
	lock     sync.Mutex
	locals   map[string]string
	checks   map[string][]string
	checked  map[string]int
	executed map[string]bool
	hanging  map[string]chan string
}

func newListener(client string) *listener {
	return &listener{
		client:   client,
		locals:   map[string]string{},
		checks:   map[string][]string{},
		checked:  map[string]int{},
		executed: map[string]bool{},
		hanging:  map[string]chan string{},
	}
}

func (l *listener) tell(key, local string, checks []string) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.locals[key] = local
	l.checks[key] = checks
}

func (l *listener) gate(key string) chan string {
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.hanging[key] == nil {
		l.hanging[key] = make(chan string, 1)
	}
	return l.hanging[key]
}

func (l *listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	key := keysOf(message)
	event("local", facts{
		"client": l.client, "key": key, "transaction_id": message.TransactionId,
	})
	l.lock.Lock()
	l.executed[key] = true
	answer, told := l.locals[key]
	l.lock.Unlock()
	if !told {
		answer = unscripted
	}
	return l.act(key, answer)
}

func (l *listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	key := keysOf(&message.Message)
	l.lock.Lock()
	l.checked[key]++
	number := l.checked[key]
	answers := l.checks[key]
	l.lock.Unlock()
	event("check", facts{
		"client": l.client, "key": key, "number": number,
		"transaction_id": message.TransactionId, "message": received(message),
	})
	if len(answers) == 0 {
		return l.act(key, unscripted)
	}
	// The last answer is given again and again.
	return l.act(key, answers[min(number, len(answers))-1])
}

func (l *listener) act(key, answer string) primitive.LocalTransactionState {
	if rest, found := strings.CutPrefix(answer, "sleep:"); found {
		ms, then, _ := strings.Cut(rest, ":")
		count, err := strconv.Atoi(ms)
		if err != nil {
			panic(err)
		}
		time.Sleep(time.Duration(count) * time.Millisecond)
		return l.act(key, then)
	}
	if then, found := strings.CutPrefix(answer, "executed:"); found {
		l.lock.Lock()
		executed := l.executed[key]
		l.lock.Unlock()
		if !executed {
			then = unscripted
		}
		return l.act(key, then)
	}
	switch answer {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	case "unknown":
		return primitive.UnknowState
	case "throw":
		panic("thrown as scripted")
	case "hang":
		return l.act(key, <-l.gate(key))
	}
	panic(fmt.Sprintf("no such answer: %s", answer))
}
