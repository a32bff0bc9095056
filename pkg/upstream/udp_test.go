// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// RFC 5452: port and ID are unpredictable. Real sockets, as the kernel chooses the port.
func TestUDPPortsAndIDs(t *testing.T) {
	t.Parallel()
	s := upstreamtest.New(upstreamtest.Always(one("192.0.2.10")))
	p := newPool(t, upstream.Config{Targets: []upstream.Target{target("udp", s.Listen(t))}})
	for range 60 {
		if got := ask(t, p); got != "192.0.2.10" {
			t.Fatalf("answer %q, want 192.0.2.10", got)
		}
	}
	ports, ids, steps := map[uint16]bool{}, map[uint16]bool{}, map[uint16]int{}
	last := uint16(0)
	for _, q := range s.Queries() {
		ports[q.From.Port()] = true
		ids[q.ID] = true
		steps[q.ID-last]++
		last = q.ID
	}
	if len(ports) < 40 {
		t.Errorf("%d ports for 60 queries, want at least 40", len(ports))
	}
	if len(ids) < 55 {
		t.Errorf("%d IDs for 60 queries, want at least 55", len(ids))
	}
	for step, n := range steps {
		if n > 3 {
			t.Errorf("the ID grew by %d %d times, want no sequence", step, n)
		}
	}
}

// TuDoor (CVE-2023-28452): a bad datagram does not end the wait for the answer.
func TestUDPBadDatagramFirst(t *testing.T) {
	t.Parallel()
	for _, shape := range upstreamtest.BadShapes() {
		t.Run(shape.Name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(func(upstreamtest.Query) upstreamtest.Action {
					return upstreamtest.Action{Raw: []upstreamtest.Raw{shape.Make, func(q []byte) []byte {
						time.Sleep(150 * time.Millisecond)
						return upstreamtest.Forged(q)
					}}}
				})
				p := memory(t, "udp", upstreamtest.Network{addrA: s}, addrA)
				want := "mismatch=1"
				if shape.Reads {
					want = "malformed=1"
				}
				start := time.Now()
				if got := ask(t, p); got != "192.0.2.66" {
					t.Errorf("answer %q, want the good one, 192.0.2.66", got)
				}
				if got := time.Since(start); got != 150*time.Millisecond {
					t.Errorf("it took %v, want 150ms", got)
				}
				if got := failures(p); got != want {
					t.Errorf("failures %q, want %q", got, want)
				}
				if got := p.Stats().Servers[0]; got.Requests != 1 || got.SRTT != 150*time.Millisecond {
					t.Errorf("%d requests and srtt %v, want one and no penalty on 150ms", got.Requests, got.SRTT)
				}
			})
		})
	}
}

// The same over a real socket, with all shapes at once.
func TestUDPBadDatagramsFromSocket(t *testing.T) {
	t.Parallel()
	shapes := upstreamtest.BadShapes()
	raws := make([]upstreamtest.Raw, len(shapes)+1)
	for i, shape := range shapes {
		raws[i] = shape.Make
	}
	raws[len(shapes)] = upstreamtest.Forged
	s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Raw: raws}))
	p := newPool(t, upstream.Config{Targets: []upstream.Target{target("udp", s.Listen(t))}})
	if got := ask(t, p); got != "192.0.2.66" {
		t.Errorf("answer %q, want the good one, 192.0.2.66", got)
	}
}

// Mismatches never count against an upstream (CVE-2023-26437).
func TestUDPMismatchesLeaveHealthAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wrong := upstreamtest.BadShapes()[0].Make
		a := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{
			Raw: []upstreamtest.Raw{wrong, wrong, wrong, upstreamtest.Forged},
		}))
		b := upstreamtest.New(upstreamtest.Always(after(time.Millisecond, one("192.0.2.20"))))
		p := memory(t, "udp", upstreamtest.Network{addrA: a, addrB: b}, addrA, addrB)
		for range 20 {
			ask(t, p)
		}
		stats := p.Stats().Servers
		if a, b := stats[0].Requests, stats[1].Requests; a != 19 || b != 1 {
			t.Errorf("requests %d and %d, want 19 to the fast one that is spoofed, 1 to the other", a, b)
		}
		if got, want := failures(p), "mismatch=57"; got != want {
			t.Errorf("failures %q, want %q", got, want)
		}
	})
}

func TestTruncatedGoesToTCP(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		udp  upstreamtest.Action
	}{
		{name: "empty with TC", udp: upstreamtest.Action{Truncate: true}},
		{name: "truncated within a record, with TC", udp: upstreamtest.Action{Raw: []upstreamtest.Raw{func(q []byte) []byte {
			r := upstreamtest.Forged(q)
			r[2] |= 2
			return r[:len(r)-3]
		}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(upstreamtest.By(upstreamtest.Always(tt.udp), upstreamtest.Always(one("192.0.2.10"))))
				p := memory(t, "udp", upstreamtest.Network{addrA: s}, addrA)
				if got := ask(t, p); got != "192.0.2.10" {
					t.Errorf("answer %q, want 192.0.2.10", got)
				}
				var networks []string
				for _, q := range s.Queries() {
					networks = append(networks, q.Network)
				}
				if diff := cmp.Diff([]string{"udp", "tcp"}, networks); diff != "" {
					t.Errorf("queries (-want +got):\n%s", diff)
				}
				got := p.Stats().Servers[0]
				if got.Requests != 1 || got.Truncated != 1 || got.Opened != 1 {
					t.Errorf("requests %d truncated %d opened %d, want one request", got.Requests, got.Truncated, got.Opened)
				}
			})
		})
	}
}

// The answer has the caller's ID and no trailing bytes.
func TestExchangeAnswer(t *testing.T) {
	t.Parallel()
	s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{func(q []byte) []byte {
		return append(upstreamtest.Forged(q), "trailing"...)
	}}}))
	p := newPool(t, upstream.Config{Targets: []upstream.Target{target("udp", s.Listen(t))}, NoRandomCase: true})
	q := upstreamtest.Question(t, "www.example.")
	q[0], q[1] = 0xab, 0xcd
	sent := string(q)
	got, err := exchange(p, q, 10*time.Second)
	if want := upstreamtest.Forged(q); err != nil || !bytes.Equal(got, want) {
		t.Errorf("answer %q, error %v, want %q", got, err, want)
	}
	if string(q) != sent {
		t.Error("the query was changed")
	}
	if _, err := exchange(p, q[:5], time.Second); err == nil {
		t.Error("a truncated query is asked, want an error")
	}
}

// IPv6 works like IPv4.
func TestUDPOverIPv6(t *testing.T) {
	t.Parallel()
	pc, err := net.ListenUDP("udp6", &net.UDPAddr{IP: net.IPv6loopback})
	if err != nil {
		t.Skipf("no IPv6 on this machine: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 512)
		for {
			n, from, err := pc.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteToUDPAddrPort(upstreamtest.Forged(buf[:n]), from)
		}
	}()
	defer func() { _ = pc.Close(); <-ended }()
	addr := netip.AddrPortFrom(netip.IPv6Loopback(), uint16(pc.LocalAddr().(*net.UDPAddr).Port))
	p := newPool(t, upstream.Config{Targets: []upstream.Target{target("udp", addr)}})
	if got := ask(t, p); got != "192.0.2.66" {
		t.Errorf("answer %q, want 192.0.2.66", got)
	}
}
