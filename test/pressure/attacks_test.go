// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// attacksEnv has the test's own binary be a pod that attacks, in place of a test: a [target] as JSON.
const attacksEnv = "PRESSURE_ATTACKS"

// A target is what an attacking pod knows.
type target struct {
	Attacks   []string
	Agent     netip.AddrPort
	Admin     netip.AddrPort
	Sources   []netip.Addr // its own addresses
	OtherPods []netip.Addr // addresses of other pods
	Upstream  netip.AddrPort
	Node      netip.Addr // that asks the upstream
}

// An attack runs until its context ends.
type attack struct {
	name string
	run  func(a *attacker)
}

// attacks are all that one pod tries, each bounded only by what the pod can send and the rate that it names.
func attacks() []attack {
	return []attack{
		{"cold", coldNames},
		{"reverse", reverseNames},
		{"sets", largeSets},
		{"unread", unreadAnswers},
		{"half", halfFrames},
		{"slow", slowReaders},
		{"churn", connectionChurn},
		{"garbage", pipelinedGarbage},
		{"malformed", malformedPackets},
		{"edns", ednsOptions},
		{"transfer", transfers},
		{"chaos", chaosNames},
		{"spoof", spoofedAddresses},
		{"refresh", shortLived},
		{"truncated", truncatedAnswers},
		{"admin", adminPages},
	}
}

// attackNames are the names of all attacks.
func attackNames() (list []string) {
	for _, a := range attacks() {
		list = append(list, a.name)
	}
	return list
}

// An attacker runs one attack.
type attacker struct {
	target
	ctx     context.Context //nolint:containedctx // its life
	running sync.WaitGroup
	sent    atomic.Int64 // queries, packets or frames
	opened  atomic.Int64 // connections
	refused atomic.Int64 // connections that could not be opened
	closed  atomic.Int64 // connections that the agent ended
}

// attackUntilSignal runs the attacks of a target until SIGTERM, and prints what each has sent.
func attackUntilSignal(text string) int {
	var to target
	if err := json.Unmarshal([]byte(text), &to); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var running []*attacker
	var names []string
	for _, one := range append(attacks(), pushAttacks()...) {
		if slices.Contains(to.Attacks, one.name) {
			a := &attacker{target: to, ctx: ctx}
			a.running.Go(func() { one.run(a) })
			running, names = append(running, a), append(names, one.name)
		}
	}
	for i, a := range running {
		a.running.Wait()
		fmt.Printf("%s: %d sent", names[i], a.sent.Load())
		if a.opened.Load() > 0 {
			fmt.Printf(" in %d connections, %d ended by the agent, %d refused", a.opened.Load(), a.closed.Load(), a.refused.Load())
		}
		fmt.Println()
	}
	return 0
}

// pace calls send so many times a second. What was due while the pod had no CPU is left out but for 20 ms of it.
func (a *attacker) pace(rate int, send func(i int)) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i, began := 0, time.Now(); ; {
		select {
		case <-a.ctx.Done():
			return
		case <-tick.C:
		}
		due := int(time.Since(began) * time.Duration(rate) / time.Second)
		for i = max(i, due-rate/50); i < due; i++ {
			send(i)
		}
	}
}

// sockets opens two UDP sockets for each source address, so that every socket of the agent has some of what they send.
func (a *attacker) sockets() (list []net.Conn) {
	for _, source := range slices.Concat(a.Sources, a.Sources) {
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: source.AsSlice()}}
		if conn, err := d.DialContext(a.ctx, "udp", a.Agent.String()); err == nil {
			list = append(list, conn)
		}
	}
	return list
}

// flood sends queries over UDP at a rate, each made by packet, which may change the one that it has.
func (a *attacker) flood(rate int, packet func(i int) []byte) {
	sockets := a.sockets()
	a.pace(rate, func(i int) {
		if _, err := sockets[i%len(sockets)].Write(packet(i)); err == nil {
			a.sent.Add(1)
		}
	})
}

// sessions keeps n TCP sessions open from each source address. Each is used by use until that returns, and is opened anew
// then.
func (a *attacker) sessions(to netip.AddrPort, n int, use func(conn *net.TCPConn, i int)) {
	for i := range n * len(a.Sources) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: a.Sources[i%len(a.Sources)].AsSlice()}, Timeout: 5 * time.Second}
		d.Control = func(_, _ string, raw syscall.RawConn) error { // what is not read stays with the agent
			return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
		}
		a.running.Go(func() {
			for a.pause(time.Duration(rand.IntN(200)) * time.Millisecond) {
				conn, err := d.DialContext(a.ctx, "tcp", to.String())
				if err != nil {
					a.refused.Add(1)
					continue
				}
				a.opened.Add(1)
				stop := context.AfterFunc(a.ctx, func() { _ = conn.Close() })
				use(conn.(*net.TCPConn), i)
				if a.ctx.Err() == nil {
					a.closed.Add(1)
				}
				stop()
				_ = conn.Close()
			}
		})
	}
}

// pause waits, and reports whether the attack goes on.
func (a *attacker) pause(d time.Duration) bool {
	select {
	case <-a.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// framed puts a message's length before it.
func framed(msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
}

// packed is a query with an EDNS size; 0: without EDNS.
func packed(name string, qtype uint16, size uint16) []byte {
	m := new(dns.Msg).SetQuestion(name, qtype)
	if size > 0 {
		m.SetEdns0(size, false)
	}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

// coldNames asks for names that are in no cache.
func coldNames(a *attacker) {
	q := query("cold.test")
	a.flood(10_000, func(int) []byte {
		binary.BigEndian.PutUint16(q, uint16(rand.Uint32()))
		renumber(q, rand.IntN(100_000_000))
		return q
	})
}

// reverseNames asks for the name of an address that 1,000 headless Services have.
func reverseNames(a *attacker) {
	name, err := dns.ReverseAddr(sharedAddress)
	if err != nil {
		panic(err)
	}
	all := [][]byte{packed(name, dns.TypePTR, 0), packed(name, dns.TypePTR, 1232), packed(name, dns.TypePTR, 65535)}
	a.flood(1000, func(i int) []byte { return all[i%len(all)] })
}

// largeSets asks for the largest answers of the cluster.
func largeSets(a *attacker) {
	var all [][]byte
	for _, size := range []uint16{0, 1232, 65535} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypeANY} {
			all = append(all, packed(largeSet, qtype, size), packed(manyPorts, qtype, size))
		}
	}
	a.flood(1000, func(i int) []byte { return all[i%len(all)] })
}

// unreadAnswers asks for answers of 60 KB over TCP and reads none of them.
func unreadAnswers(a *attacker) {
	large := framed(packed(largeSet, dns.TypeA, 0))
	a.sessions(a.Agent, 128, func(conn *net.TCPConn, _ int) {
		for range 20 {
			if _, err := conn.Write(large); err != nil || !a.pause(time.Second) {
				return
			}
			a.sent.Add(1)
		}
	})
}

// halfFrames sends the beginning of a query over TCP and waits.
func halfFrames(a *attacker) {
	half := framed(packed("half.test.", dns.TypeA, 0))[:20]
	a.sessions(a.Agent, 128, func(conn *net.TCPConn, i int) {
		_, _ = conn.Write(half[:1+i%len(half)])
		a.sent.Add(1)
		_, _ = conn.Read(make([]byte, 1)) // its end
	})
}

// slowReaders ask for many large answers and read them byte by byte.
func slowReaders(a *attacker) {
	large := framed(packed(largeSet, dns.TypeA, 0))
	a.sessions(a.Agent, 8, func(conn *net.TCPConn, _ int) {
		for b := make([]byte, 1); a.pause(100 * time.Millisecond); {
			if _, err := conn.Write(large[:1]); err != nil {
				return
			}
			if _, err := conn.Write(large[1:]); err != nil {
				return
			}
			a.sent.Add(1)
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := conn.Read(b); err != nil {
				return
			}
		}
	})
}

// connectionChurn opens sessions and closes them at once, some by a reset, some with a query under way.
func connectionChurn(a *attacker) {
	cold := framed(query("churn.test"))
	a.sessions(a.Agent, 8, func(conn *net.TCPConn, i int) {
		if i%2 == 0 {
			_ = conn.SetLinger(0)
		}
		if i%3 > 0 {
			q := slices.Clone(cold)
			renumber(q[2:], rand.IntN(100_000_000))
			_, _ = conn.Write(q)
			a.sent.Add(1)
		}
	})
}

// pipelinedGarbage sends what is no query over TCP, as fast as it is taken.
func pipelinedGarbage(a *attacker) {
	a.sessions(a.Agent, 2, func(conn *net.TCPConn, i int) {
		var garbage []byte
		for len(garbage) < 16<<10 {
			b := make([]byte, rand.IntN(64))
			for j := range b {
				b[j] = byte(rand.Uint32())
			}
			if i%2 == 0 && len(b) > 3 {
				b[2] &= 0x7f // a query
			}
			garbage = append(garbage, framed(b)...)
		}
		go func() { _, _ = io.Copy(io.Discard, conn) }() // ends with the connection
		for a.pause(10 * time.Millisecond) {
			if _, err := conn.Write(garbage); err != nil {
				return
			}
			a.sent.Add(1)
		}
	})
}

// malformedPackets sends queries with random bytes in them, of any length, some as fragments.
func malformedPackets(a *attacker) {
	good, room := packed(largeSet, dns.TypeA, 1232), make([]byte, 40_000)
	a.flood(5000, func(i int) []byte {
		b := room[:copy(room, good)]
		for range 1 + rand.IntN(4) {
			b[rand.IntN(len(b))] = byte(rand.Uint32())
		}
		switch i % 50 {
		case 0:
			return room[:cap(room)-rand.IntN(cap(room)-2000)]
		case 1:
			return b[:rand.IntN(len(b))]
		}
		return b
	})
}

// ednsOptions asks for a name that is in the cache with options that vary.
func ednsOptions(a *attacker) {
	a.flood(5000, func(i int) []byte {
		m := new(dns.Msg).SetQuestion(hotName, dns.TypeA)
		o := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		o.SetUDPSize(uint16(rand.Uint32()))
		o.SetVersion(uint8(i % 5 / 4))
		o.SetDo(i%2 == 0)
		for j := range i % 8 {
			b := make([]byte, []int{8, 16, 24, 40, 7}[rand.IntN(5)])
			for k := range b {
				b[k] = byte(rand.Uint32())
			}
			code := []uint16{dns.EDNS0COOKIE, dns.EDNS0SUBNET, dns.EDNS0NSID, dns.EDNS0PADDING, uint16(rand.Uint32())}[(i+j)%5]
			o.Option = append(o.Option, &dns.EDNS0_LOCAL{Code: code, Data: b})
		}
		m.Extra = append(m.Extra, o)
		b, err := m.Pack()
		if err != nil {
			panic(err)
		}
		return b
	})
}

// transfers asks for the cluster's zone, over TCP and UDP.
func transfers(a *attacker) {
	all := framed(packed("cluster.local.", dns.TypeAXFR, 0))
	a.sessions(a.Agent, 4, func(conn *net.TCPConn, _ int) {
		for a.pause(20 * time.Millisecond) {
			if _, err := conn.Write(all); err != nil {
				return
			}
			a.sent.Add(1)
		}
	})
}

// chaosNames asks what the agent asks itself, and other names of class CH.
func chaosNames(a *attacker) {
	var all [][]byte
	for _, name := range []string{"self.node-cache.", "version.bind.", "id.server.", "hostname.bind.", "any.test."} {
		q := packed(name, dns.TypeTXT, 0)
		q[len(q)-1] = dns.ClassCHAOS
		all = append(all, q)
	}
	a.flood(5000, func(i int) []byte { return all[i%len(all)] })
}

// spoofedAddresses asks for cold and hot names from the addresses of neighbours, and sends the agent answers that its
// upstream has not sent.
func spoofedAddresses(a *attacker) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		panic(err)
	}
	defer func() { _ = unix.Close(fd) }()
	cold, hot := query("spoof.test"), packed(hotName, dns.TypeA, 0)
	a.pace(5000, func(i int) {
		from, to, msg := netip.AddrPortFrom(a.OtherPods[i%len(a.OtherPods)], uint16(1024+rand.IntN(8000))), a.Agent, hot
		switch i % 4 {
		case 0:
			from, to, msg = a.Upstream, netip.AddrPortFrom(a.Node, uint16(1024+rand.IntN(64000))), slices.Clone(cold)
			msg[2] |= 0x80
		case 1, 2:
			renumber(cold, rand.IntN(100_000_000))
			msg = cold
		}
		if unix.Sendto(fd, datagram(from, to, msg), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}) == nil {
			a.sent.Add(1)
		}
	})
}

// datagram is an IPv4 packet. The kernel adds the checksum, and UDP needs none.
func datagram(from, to netip.AddrPort, payload []byte) []byte {
	const ip, udp = 20, 8
	b := make([]byte, ip+udp, ip+udp+len(payload))
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(cap(b)))
	copy(b[12:], from.Addr().AsSlice())
	copy(b[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[ip:], from.Port())
	binary.BigEndian.PutUint16(b[ip+2:], to.Port())
	binary.BigEndian.PutUint16(b[ip+4:], uint16(udp+len(payload)))
	return append(b, payload...)
}

// shortLived asks for names of a short TTL so often that each is refreshed all the time.
func shortLived(a *attacker) {
	q := query(shortZone)
	a.flood(5000, func(i int) []byte {
		renumber(q, i%500)
		return q
	})
}

// truncatedAnswers asks for names whose answers the upstream truncates over UDP, and gives 60 KB over TCP.
func truncatedAnswers(a *attacker) {
	q := query(truncatedZone)
	a.flood(500, func(int) []byte {
		renumber(q, rand.IntN(100_000_000))
		return q
	})
}

// adminPages asks for the pages of the admin server and reads only some of them.
func adminPages(a *attacker) {
	a.sessions(a.Admin, 8, func(conn *net.TCPConn, i int) {
		path := []string{"/metrics", "/status", "/livez", "/debug/pprof/heap"}[i%4]
		for range 20 {
			if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: "+strings.Repeat("x", i%3+1)+"\r\nX: "+strconv.Itoa(i)+"\r\n\r\n"); err != nil {
				return
			}
			a.sent.Add(1)
			if i%2 == 0 {
				_ = conn.SetReadDeadline(time.Now().Add(time.Second))
				if _, err := conn.Read(make([]byte, 64<<10)); err != nil {
					return
				}
			}
			if !a.pause(100 * time.Millisecond) {
				return
			}
		}
	})
}
