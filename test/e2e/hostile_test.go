// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

const (
	hostileRate = 2000      // packets a second of each sender, so that the test measures behaviour and not speed
	hostileRSS  = 128 << 20 // bytes; the cache of the test may hold 8 MiB
)

// TestHostilePackets sends random and mutated packets over UDP and TCP. The agent lives, its memory stays bounded
// and a normal client is answered throughout.
func TestHostilePackets(t *testing.T) {
	length := proctest.OrdinaryOrSoak(5*time.Second, 30*time.Second)
	nsd := startNSD(t)
	a := startAgent(t, settings{to: []string{nsd.addr}, more: "cache: {size: 8Mi}"})
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var wg sync.WaitGroup
	for seed := range uint64(2) {
		wg.Go(func() { hostileUDP(ctx, t, a.addr, newMutator(t, seed)) })
		wg.Go(func() { hostileTCP(ctx, t, a.addr, newMutator(t, seed+2)) })
	}
	client := dns.Client{Timeout: 4 * time.Second}
	asked, worst, most := 0, time.Duration(0), int64(0)
	for ; ctx.Err() == nil; asked++ {
		for _, name := range []string{"host.e2e.test.", fmt.Sprintf("n%d.wild.e2e.test.", asked)} {
			r, took, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), a.addr)
			if err != nil || r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1 {
				t.Errorf("a normal query for %s: %v %v", name, r, err)
			}
			worst = max(worst, took)
		}
		most = max(most, a.Usage(t).RSS)
		time.Sleep(50 * time.Millisecond)
	}
	wg.Wait()
	t.Attr("normal", fmt.Sprintf("%d queries, the slowest took %s", 2*asked, worst))
	t.Attr("resident", fmt.Sprintf("%d MiB at most", most>>20))
	if most > hostileRSS {
		t.Errorf("%d bytes resident, want at most %d", most, hostileRSS)
	}
	if asked == 0 || a.Ended() {
		t.Errorf("asked %d times, ended: %t", asked, a.Ended())
	}
}

// hostileUDP sends packets from ever new ports.
func hostileUDP(ctx context.Context, t *testing.T, addr string, m *mutator) {
	t.Helper()
	for ctx.Err() == nil {
		conn, err := net.Dial("udp", addr)
		if err != nil {
			t.Errorf("dialing: %v", err)
			return
		}
		for range hostileRate / 100 {
			_, _ = conn.Write(m.packet()) // the answers are of no interest, nor is an error that ICMP brought
		}
		_ = conn.Close()
		time.Sleep(10 * time.Millisecond)
	}
}

// hostileTCP sends framed packets, wrong lengths and bare noise, and closes at any point.
func hostileTCP(ctx context.Context, t *testing.T, addr string, m *mutator) {
	t.Helper()
	for ctx.Err() == nil {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Errorf("dialing: %v", err)
			return
		}
		for range m.random.IntN(20) {
			packet := m.packet()
			length := len(packet)
			if m.random.IntN(4) == 0 {
				length = m.random.IntN(1 << 16)
			}
			frame := append(binary.BigEndian.AppendUint16(nil, uint16(length)), packet...)
			if _, err := conn.Write(frame[:len(frame)-m.random.IntN(2)*m.random.IntN(len(frame))]); err != nil {
				break // the agent closed the session, as it should on a bad frame
			}
		}
		if m.random.IntN(2) == 0 {
			_ = conn.(*net.TCPConn).SetLinger(0) // close with a reset
		}
		_ = conn.Close()
		time.Sleep(10 * time.Millisecond)
	}
}

// mutator makes packets from a fixed seed.
type mutator struct {
	random *rand.Rand
	seeds  [][]byte // good messages
}

func newMutator(t *testing.T, seed uint64) *mutator {
	t.Helper()
	m := &mutator{random: rand.New(rand.NewPCG(seed, 0))}
	for _, qtype := range []uint16{dns.TypeA, dns.TypeANY, dns.TypeAXFR, dns.TypeTXT, dns.TypeOPT} {
		q := new(dns.Msg).SetQuestion("mutated.wild.e2e.test.", qtype)
		q.SetEdns0(4096, true)
		q.IsEdns0().Option = []dns.EDNS0{
			&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"},
			&dns.EDNS0_LOCAL{Code: 65001, Data: []byte{1, 2, 3}},
		}
		packed, err := q.Pack()
		assert.NoError(t, err)
		m.seeds = append(m.seeds, packed)
	}
	return m
}

// packet is noise, or a good message with some bytes changed, cut or repeated.
func (m *mutator) packet() []byte {
	if m.random.IntN(4) == 0 {
		noise := make([]byte, 1+m.random.IntN(600))
		for i := range noise {
			noise[i] = byte(m.random.Uint32())
		}
		return noise
	}
	packet := append([]byte(nil), m.seeds[m.random.IntN(len(m.seeds))]...)
	for range m.random.IntN(6) {
		packet[m.random.IntN(len(packet))] = byte(m.random.Uint32())
	}
	switch m.random.IntN(4) {
	case 0:
		packet = packet[:1+m.random.IntN(len(packet))]
	case 1:
		packet = append(packet, packet[m.random.IntN(len(packet)):]...)
	}
	return packet
}
