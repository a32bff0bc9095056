// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// BenchmarkConnPool queries a responder on loopback in batches of up to 32, like the server's reader. The figures
// include the responder, which batches its system calls too.
func BenchmarkConnPool(b *testing.B) {
	for _, network := range []string{"tcp", "tls"} {
		for _, depth := range []int{1, 100, 1000} {
			b.Run(fmt.Sprintf("%s/depth=%d", network, depth), func(b *testing.B) { benchmarkConnPool(b, network, depth) })
		}
	}
}

func benchmarkConnPool(b *testing.B, network string, depth int) {
	b.Helper()
	target := frameResponder(b, network)
	h := newHarness(b, target, 1, nil)
	if got := h.ask(b); got != "192.0.2.66" {
		b.Fatalf("answer %q", got)
	}
	q := upstreamtest.Question(b, "www.example.")
	free := make(chan *attempt, depth)
	var bad atomic.Int64
	var running sync.WaitGroup
	for range depth {
		a := &attempt{query: q}
		a.receiver = replyFunc(func(r reply, _ *wire.SendBatch) {
			if r.err != nil {
				bad.Add(1)
			}
			running.Done()
			free <- a
		})
		free <- a
	}
	var batch wire.SendBatch
	b.ReportAllocs()
	b.ResetTimer()
	for left := b.N; left > 0; {
		count := 0
		for a := range free {
			running.Add(1)
			if err := h.send(a, &batch); err != nil {
				b.Fatal(err)
			}
			if count, left = count+1, left-1; count == 32 || left == 0 || len(free) == 0 {
				break
			}
		}
		batch.Flush()
	}
	running.Wait()
	b.StopTimer()
	if bad.Load() > 0 {
		b.Errorf("%d queries failed", bad.Load())
	}
}

// frameResponder listens on loopback and answers every query until the benchmark ends.
func frameResponder(b *testing.B, network string) Target {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	target := Target{Network: network, Addr: ln.Addr().(*net.TCPAddr).AddrPort()}
	if network == "tls" {
		authority := upstreamtest.NewAuthority(b, time.Now())
		target.CAFile = filepath.Join(b.TempDir(), "ca.pem")
		authority.Trust(b, target.CAFile)
		ln = tls.NewListener(ln, &tls.Config{
			Certificates: []tls.Certificate{authority.Issue(b, time.Now().Add(time.Hour), "127.0.0.1")}, MinVersion: tls.VersionTLS12,
		})
	}
	b.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go echo(conn)
		}
	}()
	return target
}
