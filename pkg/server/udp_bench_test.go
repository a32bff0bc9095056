// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A slowHandler misses every query, and replies to a batch at its end.
type slowHandler struct{}

func (slowHandler) NewWorker() server.Worker { return new(slowWorker) }

type slowWorker struct {
	batch wire.SendBatch
	reply [constantSize]byte
	ids   [][2]byte
	to    []wire.Replier
}

func (l *slowWorker) AnswerFromMemory(pkt []byte, _ *wire.Peer, _ time.Time, dst []byte) ([]byte, wire.Verdict) {
	l.ids = append(l.ids, [2]byte(pkt))
	return dst, wire.Missed
}

func (l *slowWorker) Resolve(_ *wire.Peer, _ time.Time, to wire.Replier) { l.to = append(l.to, to) }

func (l *slowWorker) Flush(time.Time) {
	for i, to := range l.to {
		copy(l.reply[:], l.ids[i][:])
		to.Reply(l.reply[:], &l.batch)
	}
	clear(l.to)
	l.ids, l.to = l.ids[:0], l.to[:0]
	l.batch.Flush()
}

// BenchmarkUDPMisses is queries and their replies over loopback by the slow path,
// so many at a time, client included: his share is two system calls a query.
func BenchmarkUDPMisses(b *testing.B) {
	for _, burst := range []int{1, 8, 64} {
		b.Run(strconv.Itoa(burst), func(b *testing.B) {
			benchmarkMisses(b, burst)
		})
	}
}

func benchmarkMisses(b *testing.B, burst int) {
	b.Helper()
	u := listenUDP(b, server.UDPConfig{Handler: slowHandler{}, Readers: 1})
	cancel := run(b, u)
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(u.Addr()))
	assert.NoError(b, err)
	_ = c.SetDeadline(time.Now().Add(5 * time.Minute))
	q, buf := servertest.Query(1, "miss.test"), make([]byte, 512)
	b.ReportAllocs()
	before := cpuTime(b)
	b.ResetTimer()
	for done := 0; done < b.N; done += burst {
		for range burst {
			if _, err := c.Write(q); err != nil {
				b.Fatal(err)
			}
		}
		for range burst {
			if _, err := c.Read(buf); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
	_ = c.Close()
	cancel()
}
