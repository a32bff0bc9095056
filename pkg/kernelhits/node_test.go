// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Who answers: the process, or the kernel for it.
const (
	byAgent  = "agent"
	byKernel = "kernel"
)

// limit is for anything: an emulated machine is slow.
const limit = time.Minute

// agentAddrs are at the port of DNS, and at that of Config.
func agentAddrs() []netip.AddrPort {
	return []netip.AddrPort{netip.MustParseAddrPort("169.254.20.10:53"), netip.MustParseAddrPort("[fd00:20::10]:5300")}
}

// hooks are the two ways to attach a program.
func hooks() []string { return []string{"tcx", "clsact"} }

// A node is one that an agent runs on: a server whose copies in the kernel have a text of their own. It does what [Responder.Run]
// does, but in a network namespace.
type node struct {
	*nodetest.Network
	*Responder

	stop      func()        // detaches
	blockedIn time.Duration // that of links; 0: its own
	left      time.Duration // for which an answer is valid; 0: for longer than the test
}

// newNode starts the agent. The hook "clsact" is that of kernels without tcx.
func newNode(t *testing.T, hook string, o nodetest.Options) *node {
	t.Helper()
	n := newNetwork(t, o)
	n.startAgent(t, hook)
	return n
}

// newNetwork returns a node without an agent.
func newNetwork(t *testing.T, o nodetest.Options) *node {
	t.Helper()
	n := &node{Network: nodetest.Start(t, o)}
	for _, addr := range agentAddrs() {
		assert.NoError(t, n.Node.AddAddress(addr.Addr()))
	}
	return n
}

// startAgent starts an agent, and leaves one that runs already without a way to end.
func (n *node) startAgent(t *testing.T, hook string) {
	t.Helper()
	var conns []*net.UDPConn
	for _, addr := range agentAddrs() {
		assert.NoError(t, n.Node.Do(func() error {
			listen := net.ListenConfig{Control: reusePort}
			conn, err := listen.ListenPacket(t.Context(), "udp", addr.String())
			if err == nil {
				conns = append(conns, conn.(*net.UDPConn))
			}
			return err
		}))
	}
	k := open(t, func() (list []syscall.RawConn) {
		for _, conn := range conns {
			raw, _ := conn.SyscallConn() // fails for a nil conn only
			list = append(list, raw)
		}
		return list
	})
	k.links.legacy = hook == "clsact"
	k.cfg.Source = answerer{byKernel, n.left}
	k.links.blockedIn = cmp.Or(n.blockedIn, k.links.blockedIn)
	assert.NoError(t, k.SetDestinations(agentAddrs()))
	assert.NoError(t, k.readSockets())
	k.Beat()
	k.Set(true)
	n.Responder = k
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for _, conn := range conns {
		group.Go(func() { serve(conn, k.Worker(answerer{name: byAgent})) })
	}
	group.Go(func() { k.fillAll(ctx) })
	group.Go(func() {
		err := n.Node.Do(func() error {
			defer k.links.detachAll()
			k.links.watch(ctx)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	n.stop = sync.OnceFunc(func() {
		cancel()
		for _, conn := range conns {
			_ = conn.Close()
		}
		group.Wait()
	})
	t.Cleanup(n.stop)
	if hook == "tcx" {
		assert.NoError(t, n.Node.Do(func() error { return skipWithoutTCX(t, k) }))
	}
}

// open loads the programs until the test ends.
func open(t *testing.T, sockets func() []syscall.RawConn) *Responder {
	t.Helper()
	k, err := Open(Config{
		Source: answerer{name: byKernel}, Owner: func([]byte) []byte { return nil }, Size: 64 * AnswerSize,
		Permit: time.Hour, Lease: time.Hour, Port: 5300,
		Sockets: sockets, Busy: func() time.Duration { return 0 }, Lapsed: func() bool { return false },
		Count: func(Hits) {}, Attribute: func(Client) {}, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	assert.NoError(t, err)
	t.Cleanup(k.Close)
	return k
}

// skipWithoutTCX skips the test if the kernel has no tcx.
func skipWithoutTCX(t *testing.T, k *Responder) error {
	t.Helper()
	attached, err := link.AttachTCX(link.TCXOptions{Interface: 1, Program: k.objects.AnswerHit, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, link.ErrNotSupported) {
		t.Skip("this kernel has no tcx")
	}
	if err != nil {
		return err
	}
	return attached.Close()
}

// fillAll writes what the workers offer.
func (k *Responder) fillAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-k.offers:
			k.table.fill(o.query[:o.len])
		}
	}
}

func reusePort(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, 15, 1) })
}

// serve answers until conn is closed.
func serve(conn *net.UDPConn, w server.Worker) {
	buf := make([]byte, 512)
	for {
		size, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		peer := wire.Peer{Addr: netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}
		if reply, verdict := w.AnswerFromMemory(buf[:size], &peer, time.Now(), nil); verdict == wire.Answered {
			_, _ = conn.WriteToUDPAddrPort(reply, from)
		}
	}
}

// deniedName has no records.
const deniedName = "denied."

// An answerer answers TXT queries of any name but deniedName with its own.
type answerer struct {
	name string
	left time.Duration // for which an answer is valid; 0: for longer than the test
}

func (a answerer) reply(pkt, dst []byte) ([]byte, bool) {
	var q dns.Msg
	if q.Unpack(pkt) != nil || len(q.Question) != 1 {
		return dst, false
	}
	m := new(dns.Msg).SetReply(&q)
	m.RecursionAvailable = true
	head := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 300}
	if head.Name != deniedName {
		m.Answer = []dns.RR{&dns.TXT{Hdr: head, Txt: []string{a.name}}}
	}
	m.Compress = true
	packed, err := m.Pack()
	return append(dst, packed...), err == nil
}

// AnswerFromMemory implements [server.Worker].
func (a answerer) AnswerFromMemory(pkt []byte, _ *wire.Peer, _ time.Time, dst []byte) ([]byte, wire.Verdict) {
	dst, ok := a.reply(pkt, dst)
	if !ok {
		return dst, wire.Dropped
	}
	return dst, wire.Answered
}

// Resolve implements [server.Worker].
func (answerer) Resolve(*wire.Peer, time.Time, wire.Replier) {}

// Flush implements [server.Worker].
func (answerer) Flush(time.Time) {}

// SharedReply implements [Source].
func (a answerer) SharedReply(pkt []byte, _ time.Time, dst []byte) ([]byte, resolve.Shared, bool) {
	dst, ok := a.reply(pkt, dst)
	return dst, resolve.Shared{Source: resolve.SourceCache, Key: pkt[12 : len(pkt)-1], Left: cmp.Or(a.left, time.Hour)}, ok
}

// await waits until a host gets its answers from the kernel, in both families.
func (n *node) await(t *testing.T, from *nodetest.Host) {
	t.Helper()
	for _, addr := range agentAddrs() {
		last := ""
		proctest.Eventually(t, limit, "the kernel answers "+from.Name+" at "+addr.String(), func() bool {
			got, err := nodetest.Ask(from, addr, "udp")
			if last = got; err != nil {
				last = err.Error()
			}
			return got == byKernel
		}, func() string { return "last: " + last })
	}
}
