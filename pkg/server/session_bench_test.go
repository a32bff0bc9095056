// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A constantHandler answers every query at once with 64 bytes.
type constantHandler struct{}

const constantSize = 64

func (constantHandler) NewWorker() server.Worker { return constantWorker{} }

type constantWorker struct{}

func (constantWorker) AnswerFromMemory(pkt []byte, _ *wire.Peer, _ time.Time, dst []byte) ([]byte, wire.Verdict) {
	var reply [constantSize]byte
	copy(reply[:], pkt)
	return append(dst, reply[:]...), wire.Answered
}

func (constantWorker) Resolve(_ *wire.Peer, _ time.Time, to wire.Replier) {
	to.Reply(nil, new(wire.SendBatch))
}

func (constantWorker) Flush(time.Time) {}

// A pipeline is a client that sends depth queries at a time and reads the answers.
type pipeline struct {
	conn    net.Conn
	asked   []byte
	answers []byte
}

func newPipeline(tb testing.TB, depth int) *pipeline {
	tb.Helper()
	s := listenTCP(tb, server.TCPConfig{Handler: constantHandler{}})
	run(tb, s)
	conn, err := net.Dial("tcp", s.Addr().String())
	assert.NoError(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	p := &pipeline{conn: conn, answers: make([]byte, depth*(2+constantSize))}
	for id := range depth {
		p.asked = append(p.asked, servertest.Frame(servertest.Query(uint16(id), "kubernetes.default"))...)
	}
	return p
}

func (p *pipeline) round() error {
	if _, err := p.conn.Write(p.asked); err != nil {
		return err
	}
	_, err := io.ReadFull(p.conn, p.answers)
	return err
}

// The CPU time is of both ends: the server's share is about half of it.
func BenchmarkTCPPipelinedHits(b *testing.B) {
	for _, depth := range []int{1, 8, 64, 512} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			p := newPipeline(b, depth)
			assert.NoError(b, p.round())
			b.ReportAllocs()
			before := cpuTime(b)
			b.ResetTimer()
			for done := 0; done < b.N; done += depth {
				assert.NoError(b, p.round())
			}
			b.StopTimer()
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime returns what the process has used, in the kernel and outside.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var use syscall.Rusage
	assert.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &use))
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// A warm session allocates nothing for hits: not for a batch, so not for one of its
// queries. The test is not parallel: AllocsPerRun counts for the whole process.
func TestTCPHitsDoNotAllocate(t *testing.T) {
	for _, depth := range []int{1, 64, 512} {
		t.Run(fmt.Sprintf("depth %d", depth), func(t *testing.T) {
			p := newPipeline(t, depth)
			var failed error
			round := func() {
				if err := p.round(); err != nil {
					failed = err
				}
			}
			for range 10 {
				round()
			}
			if got := testing.AllocsPerRun(200, round); got != 0 || failed != nil {
				t.Errorf("%v allocations for a round of %d hits, want 0; error %v", got, depth, failed)
			}
		})
	}
}
