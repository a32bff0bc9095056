// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestNames has the kernel answer names of all lengths, where the agent must have answered each to the pod.
func TestNames(t *testing.T) {
	n := newNetwork(t, nodetest.Options{})
	n.startAgent(t, "clsact")
	n.SetNamePermit(time.Hour)
	for _, name := range []string{
		".", "a.", "abcde.", "abcdef.", "abcdefg.", "abcdefgh.", "MiXed.Case.", strings.Repeat("a.", 63), strings.Repeat("a", 63) + "." + strings.Repeat("b", 61) + ".",
	} {
		for _, addr := range agentAddrs() {
			proctest.Eventually(t, limit, "the kernel answers "+name, func() bool {
				who, _ := nodetest.AskName(n.Pods[0], addr, "udp", name)
				return who == byKernel
			})
		}
	}
	// What the agent has answered to a pod counts for no other pod.
	n.await(t, n.Pods[1])
	who, err := nodetest.AskName(n.Pods[1], agentAddrs()[0], "udp", "a.")
	assert.NoError(t, err)
	assert.Equal(t, "who answers another pod first", byAgent, who)
	// There is nothing to learn from a denial: it takes no room.
	before := n.countNames()
	reply, err := n.Pods[1].Dial(t.Context(), "udp", agentAddrs()[0].String())
	assert.NoError(t, err)
	denied, err := new(dns.Msg).SetQuestion(deniedName, dns.TypeTXT).Pack()
	assert.NoError(t, err)
	_, err = reply.Write(denied)
	assert.NoError(t, err)
	assert.NoError(t, reply.SetReadDeadline(time.Now().Add(limit)))
	_, err = reply.Read(make([]byte, 512))
	assert.NoError(t, err)
	assert.NoError(t, reply.Close())
	assert.Equal(t, "permits of names after a denial", before, n.countNames())
	n.ForgetNames()
	who, err = nodetest.AskName(n.Pods[1], agentAddrs()[0], "udp", "a.")
	assert.NoError(t, err)
	assert.Equal(t, "who answers once all is forgotten", byAgent, who)
}

// countNames counts the permits of names that the kernel holds.
func (k *Responder) countNames() (count int) {
	var name hitsNameKey
	var answered uint64
	for all := k.objects.Names.Iterate(); all.Next(&name, &answered); {
		count++
	}
	return count
}

// An engine is a policy engine that learns names from the replies that it sees leave to a pod, and forgets them.
type engine struct {
	fd   int
	stop atomic.Bool
	done sync.WaitGroup

	seen map[string][]time.Time // by name
}

// The times of an engine and of the kernel are a hundredth of those in the field: 30 s, and 10 s.
const (
	engineForgets  = 300 * time.Millisecond
	shortPermit    = 100 * time.Millisecond
	imitationTakes = 1500 * time.Millisecond
)

// startEngine starts an engine for the pod behind an interface.
func (n *node) startEngine(t *testing.T, name string) *engine {
	t.Helper()
	e := &engine{seen: map[string][]time.Time{}}
	assert.NoError(t, n.Node.Do(func() error {
		dev, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if e.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(networkOrder(unix.ETH_P_ALL))); err != nil {
			return err
		}
		if err := unix.Bind(e.fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: dev.Attrs().Index}); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS_NEW, 1); err != nil {
			return err
		}
		_ = unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		return unix.SetsockoptTimeval(e.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	}))
	e.done.Go(e.read)
	return e
}

// read reads until stop is set and all packets are read.
func (e *engine) read() {
	buf, control := make([]byte, 2048), make([]byte, 128)
	for {
		size, controls, _, from, err := unix.Recvmsg(e.fd, buf, control, 0)
		if errors.Is(err, unix.EAGAIN) && !e.stop.Load() || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			_ = unix.Close(e.fd)
			return
		}
		const headers = 14 + 20 + 8
		if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype != unix.PACKET_OUTGOING || size < headers {
			continue
		}
		var m dns.Msg
		list, err := unix.ParseSocketControlMessage(control[:controls])
		if m.Unpack(buf[headers:size]) != nil || !m.Response || len(m.Question) != 1 || err != nil || len(list) != 1 {
			continue
		}
		seconds, nanoseconds := binary.NativeEndian.Uint64(list[0].Data), binary.NativeEndian.Uint64(list[0].Data[8:])
		e.seen[m.Question[0].Name] = append(e.seen[m.Question[0].Name], time.Unix(int64(seconds), int64(nanoseconds)))
	}
}

// knows reports whether the engine knew a name at a time: it has seen it since it forgot all, and not too long ago.
func (e *engine) knows(name string, at, restarted time.Time) bool {
	for _, seen := range e.seen[name] {
		if seen.After(restarted) && !seen.After(at) && at.Sub(seen) < engineForgets {
			return true
		}
	}
	return false
}

// TestEngine has a pod resolve names before each connection, and a policy engine let those to names that it has learned pass. It is
// restarted, and the kernel hears of that. No connection is dropped. Without permits of names most are: the pod's permit lasts.
func TestEngine(t *testing.T) {
	search := []string{"db.example.org.default.svc.cluster.local.", "db.example.org.svc.cluster.local.", "db.example.org.cluster.local.", "db.example.org."}
	for _, tt := range []struct {
		name   string
		names  []string
		left   time.Duration // a hundredth of the TTL
		permit time.Duration
		drops  bool
	}{
		{"one name, TTL 30", search[3:], 300 * time.Millisecond, shortPermit, false},
		{"one name, TTL 300", search[3:], 3 * time.Second, shortPermit, false},
		{"search list, TTL 30", search, 300 * time.Millisecond, shortPermit, false},
		{"search list, TTL 300", search, 3 * time.Second, shortPermit, false},
		{"search list, TTL 300, without permits of names", search, 3 * time.Second, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNetwork(t, nodetest.Options{NoIPv6: true})
			n.left = tt.left
			n.startAgent(t, "clsact")
			n.SetNamePermit(tt.permit)
			proctest.Eventually(t, limit, "the kernel answers", func() (hit bool) {
				for range 4 { // between two calls the answer may end
					who, _ := nodetest.Ask(n.Pods[0], agentAddrs()[0], "udp")
					hit = hit || who == byKernel
				}
				return hit
			})
			e := n.startEngine(t, "pod0")
			type hit struct {
				name string
				at   time.Time
			}
			var hits []hit
			var restarted time.Time
			queries, until := 0, time.Now().Add(imitationTakes)
			for time.Now().Before(until) {
				if restarted.IsZero() && time.Until(until) < imitationTakes/2 {
					restarted = time.Now().Round(0)
					n.ForgetNames()
				}
				for _, name := range tt.names {
					at := time.Now().Round(0) // the clock of packets
					who, err := nodetest.AskName(n.Pods[0], netip.AddrPortFrom(agentAddrs()[0].Addr(), 53), "udp", name)
					assert.NoError(t, err)
					if queries++; who == byKernel {
						hits = append(hits, hit{name, at})
					}
				}
			}
			e.stop.Store(true)
			e.done.Wait()
			dropped := 0
			for _, h := range hits {
				forgot := time.Time{}
				if h.at.After(restarted) {
					forgot = restarted
				}
				if !e.knows(h.name, h.at, forgot) {
					dropped++
				}
			}
			t.Logf("%d queries, %d hits; %d connections dropped", queries, len(hits), dropped)
			if len(hits) == 0 || (dropped > 0) != tt.drops {
				t.Errorf("%d hits; %d connections dropped, want some: %t", len(hits), dropped, tt.drops)
			}
		})
	}
}
