// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/configsource"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/wire"
)

// stallingAgent as the first argument has the test binary be an agent with the configuration that the second names. SIGUSR1 has
// one of its readers stall, SIGUSR2 go on.
const stallingAgent = "stalling-agent"

// runStallingAgent is an agent that a signal makes stall.
func runStallingAgent(ctx context.Context, file string) error {
	s := &stall{}
	a, err := agent.New(agent.Options{
		Source: configsource.Config{File: file}, Version: "stalling", Log: os.Stderr,
		WrapHandler: func(h server.Handler) server.Handler {
			s.Handler = h
			return s
		},
	})
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() { // ends with the process
		for on := range signals {
			if on == syscall.SIGUSR1 {
				s.gate.Lock()
			} else {
				s.gate.Unlock()
			}
		}
	}()
	if err := a.Listen(ctx); err != nil {
		return err
	}
	return a.Run(ctx)
}

// stall is a handler whose first worker waits while its gate is closed.
type stall struct {
	server.Handler
	gate    sync.RWMutex
	workers atomic.Int32
}

// NewWorker implements [server.Handler].
func (s *stall) NewWorker() server.Worker {
	l := &stallWorker{Worker: s.Handler.NewWorker(), gate: &s.gate}
	if s.workers.Add(1) > 1 {
		l.gate = new(sync.RWMutex) // never closed
	}
	return l
}

type stallWorker struct {
	server.Worker
	gate *sync.RWMutex
}

// AnswerFromMemory implements [server.Worker].
func (l *stallWorker) AnswerFromMemory(pkt []byte, from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	l.gate.RLock()
	defer l.gate.RUnlock()
	return l.Worker.AnswerFromMemory(pkt, from, now, dst)
}
