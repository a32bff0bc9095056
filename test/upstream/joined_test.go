// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
)

// TestJoinedClients has 10,000 clients ask for one name while the upstream takes its time to answer. Those that come later
// find the answer in the cache.
func TestJoinedClients(t *testing.T) {
	t.Parallel()
	const sockets, each = 1250, 8
	const roundTrip = 200 * time.Millisecond
	answered := netip.AddrFrom4([4]byte{192, 0, 2, 7})
	var asked atomic.Int64
	joined := question(nil, "joined.test")
	slow := startFakeServer(t, func(f *fakeServer, q []byte, from netip.AddrPort) {
		if answerTo(q) == nil {
			return // the agent's own
		}
		if bytes.Equal(bytes.ToLower(q[headerLen:endOfQuestion(q)]), joined) {
			asked.Add(1)
		}
		time.AfterFunc(roundTrip, func() { f.send(answerWith(q, answered), from) })
	})
	a := start(t, settings{rest: forwardTo(slow.addr.String())})
	// An upstream whose round trips are known is waited for four times as long as they take, before it is asked again.
	if r, _ := a.ask(t, nameOf(1, "joined.test")); r.Rcode != dns.RcodeSuccess {
		t.Fatalf("before: %s", dns.RcodeToString[r.Rcode])
	}
	query := append(make([]byte, headerLen), joined...)
	copy(query[2:], []byte{1, 0, 0, 1})

	var right atomic.Int64
	var clients sync.WaitGroup
	began := time.Now()
	pause := time.NewTicker(time.Millisecond) // the kernel has room for some hundred queries
	defer pause.Stop()
	for s := range sockets {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(a.settings.listen))
		if err != nil {
			t.Fatal(err)
		}
		clients.Go(func() {
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(began.Add(answerTimeout))
			right.Add(int64(countAnswers(conn, each, uint16(s), answerWith(query, answered))))
		})
		for i := range each {
			binary.BigEndian.PutUint16(query, uint16(s+i<<12))
			if _, err := conn.Write(query); err != nil {
				t.Fatal(err)
			}
		}
		if s%8 == 0 {
			<-pause.C
		}
	}
	took := time.Since(began)
	clients.Wait()
	proctest.Figure(t, "%d clients that asked within %s: %d answered, %d queries upstream", sockets*each, ms(took), right.Load(), asked.Load())
	if right.Load() != sockets*each {
		t.Errorf("%d clients have the right answer, want %d", right.Load(), sockets*each)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the upstream was asked %d times, want once", n)
	}
}

// countAnswers reads from a socket until the answers to n queries have come, each once, or time is out.
func countAnswers(conn net.Conn, n int, id uint16, want []byte) int {
	seen := map[uint16]bool{}
	msg := make([]byte, 512)
	for len(seen) < n {
		size, err := conn.Read(msg)
		if err != nil {
			break
		}
		got := binary.BigEndian.Uint16(msg)
		rest := msg[headerLen:size]
		// The TTL and the flags are the cache's to say.
		end := endOfQuestion(msg[:size])
		if got&0xfff != id || seen[got] || end == 0 || string(rest[:end-headerLen]) != string(want[headerLen:end]) ||
			string(msg[size-4:size]) != string(want[len(want)-4:]) {
			return -n
		}
		seen[got] = true
	}
	return len(seen)
}
