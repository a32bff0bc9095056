// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A stuckHandler's workers hold every query of AnswerFromMemory until something can be had from let.
type stuckHandler struct {
	*servertest.Handler
	entered chan time.Time
	let     chan struct{}
}

func (h *stuckHandler) NewWorker() server.Worker { return &stuckWorker{h.Handler.NewWorker(), h} }

type stuckWorker struct {
	server.Worker
	h *stuckHandler
}

func (s *stuckWorker) AnswerFromMemory(pkt []byte, from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	s.h.entered <- now
	<-s.h.let
	return s.Worker.AnswerFromMemory(pkt, from, now, dst)
}

func TestUDPBusy(t *testing.T) {
	t.Parallel()
	h := &stuckHandler{servertest.New(map[string]servertest.Rule{"odd.test": {Action: servertest.Panic}}), make(chan time.Time, 1), make(chan struct{})}
	u, _ := serveUDP(t, h, "127.0.0.1:0")
	awaitIdle(t, u)
	c := dialUDP(t, u.Addr())
	for id, name := range []string{"fine.test", "odd.test", "fine.test"} {
		write(t, c, servertest.Query(uint16(id), name))
		began := <-h.entered
		if got, want := u.BusyFor(began.Add(time.Hour)), time.Hour; got != want {
			t.Errorf("busy %s an hour into a batch, want %s", got, want)
		}
		h.let <- struct{}{}
		if name == "fine.test" {
			read(t, c)
		}
		awaitIdle(t, u)
	}
}

// awaitIdle waits until every reader waits.
func awaitIdle(t *testing.T, u *server.UDP) {
	t.Helper()
	proctest.Eventually(t, testTimeout, "no reader is busy", func() bool { return u.BusyFor(time.Now().Add(time.Hour)) == 0 })
}
