// SPDX-License-Identifier: Apache-2.0

package hits

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/kernelhits"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/wire"
)

// The agent's addresses, by family.
var agentAddrs = [2]netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:20::10")}

// families name the indices of lists that are by family.
var families = [2]string{"IPv4", "IPv6"}

// A node is the part of an agent that answers queries, in this process, with hits in the kernel.
type node struct {
	kernel   *kernelhits.Responder
	store    *zone.Store
	resolver *resolve.Resolver
	servers  []*server.UDP
	pods     []*pod

	answered            atomic.Uint64 // exchanges by the kernel
	counted, attributed atomic.Uint64 // by the kernel's callbacks
}

// A pod is a client behind an interface of the node.
type pod struct {
	*nodetest.Host
	name  string
	addrs [2]netip.Addr
}

// soak reports whether the long forms run.
func soak() bool { return os.Getenv("SOAK") != "" }

// startNode makes the calling process the node of a new namespace. It returns nil in the process outside, where the test has no
// more to do.
func startNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	if !proctest.InNamespace(t, "", "169.254.20.10/32", "fd00:20::10/128") {
		return nil
	}
	n := &node{store: newStore()}
	var err error
	plan := newPlan(t, n.store)
	n.resolver, err = resolve.New(resolve.Config{Plan: plan, Now: time.Now, Rand: rand.Reader})
	assert.NoError(t, err)
	n.kernel, err = kernelhits.Open(kernelhits.Config{
		Source: source{n.resolver.NewWorker()}, Owner: owner, Size: kernelhits.MaxSize, Permit: 5 * time.Second, Lease: time.Minute, Port: 53,
		Sockets: n.sockets, Busy: func() time.Duration { return 0 },
		Count: func(h kernelhits.Hits) { n.counted.Add(h.IPv4 + h.IPv6) }, Attribute: func(c kernelhits.Client) { n.attributed.Add(c.Answered) },
		Lapsed: func() bool { return false }, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatalf("hits are not answered in this kernel: %v", err)
	}
	n.observe(plan.Cache)
	n.run(t, workers{n.kernel, n.resolver})
	n.addPods(t)
	return n
}

// A source of answers panics for one name.
type source struct{ *resolve.Worker }

const panicName = "panic.test."

// SharedReply implements [kernelhits.Source].
func (s source) SharedReply(pkt []byte, now time.Time, dst []byte) ([]byte, resolve.Shared, bool) {
	if bytes.Contains(pkt, wireName(panicName)) {
		panic("a defect")
	}
	return s.Worker.SharedReply(pkt, now, dst)
}

// observe connects the kernel with what changes answers, as the agent does.
func (n *node) observe(c *cache.Cache) {
	n.store.Observe(nil, observer{n.kernel})
	c.Observe(n.kernel.Changed)
}

type observer struct{ *kernelhits.Responder }

func (o observer) Changing()           { o.ZoneChanging() }
func (o observer) OwnerChanged([]byte) {}
func (o observer) Changed()            { o.ZoneChanged() }

// workers are the agent's: they offer to the kernel what they answer from memory.
type workers struct {
	kernel   *kernelhits.Responder
	resolver *resolve.Resolver
}

// NewWorker implements [server.Handler].
func (w workers) NewWorker() server.Worker { return w.kernel.Worker(w.resolver.NewWorker()) }

// sockets returns the open sockets.
func (n *node) sockets() (list []syscall.RawConn) {
	for _, u := range n.servers {
		list = append(list, u.RawConns()...)
	}
	return list
}

// run serves until the test ends.
func (n *node) run(t *testing.T, h server.Handler) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var ends []chan error
	start := func(run func(context.Context) error) {
		end := make(chan error, 1)
		ends = append(ends, end)
		go func() { end <- run(ctx) }()
	}
	var destinations []netip.AddrPort
	for _, addr := range agentAddrs {
		at := netip.AddrPortFrom(addr, 53)
		u, err := server.NewUDP(server.UDPConfig{Addr: at, Handler: h})
		assert.NoError(t, err)
		assert.NoError(t, u.Listen(ctx))
		n.servers, destinations = append(n.servers, u), append(destinations, at)
	}
	for _, u := range n.servers {
		start(u.Run)
	}
	assert.NoError(t, n.kernel.SetDestinations(destinations))
	n.kernel.Set(true)
	start(func(ctx context.Context) error {
		n.kernel.Run(ctx)
		return nil
	})
	t.Cleanup(func() {
		cancel()
		for _, end := range ends {
			assert.NoError(t, <-end)
		}
		attached, _ := n.kernel.Interfaces()
		assert.Equal(t, "interfaces after the end", 0, attached)
		if answered := n.answered.Load(); n.counted.Load() < answered || n.attributed.Load() < answered {
			t.Errorf("the kernel gave %d answers: counted %d, attributed %d", answered, n.counted.Load(), n.attributed.Load())
		}
		n.kernel.Close()
	})
}

// received returns the queries that the process has received.
func (n *node) received() (sum uint64) {
	for _, u := range n.servers {
		sum += u.Stats().Received
	}
	return sum
}

// addPods adds a pod behind a veth with routes, and two at a bridge.
func (n *node) addPods(t *testing.T) {
	t.Helper()
	bridge := netlink.NewLinkAttrs()
	bridge.Name = "br0"
	assert.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: bridge}))
	br, err := netlink.LinkByName("br0")
	assert.NoError(t, err)
	assert.NoError(t, nodetest.SetLinkUp("br0", prefixes(1, 1)...))
	for i, at := range []struct {
		name    string
		network int
		master  int
	}{{"routed", 0, 0}, {"bridged", 1, br.Attrs().Index}, {"neighbor", 1, br.Attrs().Index}} {
		n.addPod(t, at.name, at.network, 2+i, at.master)
	}
	n.awaitPrograms(t)
}

// addPod adds a pod behind a veth. A master is the bridge at which it is; 0: none.
func (n *node) addPod(t *testing.T, name string, network, host, master int) {
	t.Helper()
	p := &pod{Host: newHost(t, name), name: name}
	assert.NoError(t, nodetest.AddVeth("pod-"+name, p.Host, "eth0", master))
	var near []netip.Prefix
	if master == 0 {
		near = prefixes(network, 1)
	}
	assert.NoError(t, nodetest.SetLinkUp("pod-"+name, near...))
	far := prefixes(network, host)
	p.addrs = [2]netip.Addr{far[0].Addr(), far[1].Addr()}
	assert.NoError(t, p.Do(func() error {
		if err := nodetest.SetLinkUp("lo"); err != nil {
			return err
		}
		if err := nodetest.SetLinkUp("eth0", far...); err != nil {
			return err
		}
		for _, gateway := range prefixes(network, 1) {
			if err := nodetest.AddRoute(netip.Prefix{}, gateway.Addr()); err != nil {
				return err
			}
		}
		return nil
	}))
	n.pods = append(n.pods, p)
}

// awaitPrograms waits until each pod's interface has the programs.
func (n *node) awaitPrograms(t *testing.T) {
	t.Helper()
	n.await(t, "the programs at the interfaces", func() bool {
		attached, failed := n.kernel.Interfaces()
		assert.Equal(t, "interfaces without programs", 0, len(failed))
		return attached == len(n.pods)
	})
}

// prefixes are the addresses of a host.
func prefixes(network, host int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("10.200.%d.%d/24", network, host)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:200:%d::%d/64", network, host)),
	}
}

// newHost makes a namespace, which ends with the process.
func newHost(t *testing.T, name string) *nodetest.Host {
	t.Helper()
	type result struct {
		host *nodetest.Host
		err  error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		_, err := nodetest.NewNamespace()
		var h *nodetest.Host
		if err == nil {
			h, err = nodetest.Of(unix.Gettid(), name)
		}
		made <- result{h, err}
	}()
	r := <-made
	assert.NoError(t, r.err)
	return r.host
}

// await polls until done returns true.
func (n *node) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) { // no event to wait for
		if time.Now().After(end) {
			t.Fatalf("waited 20 s for %s", what)
		}
	}
}

// dial opens a socket of the pod to the agent.
func (p *pod) dial(t *testing.T, family int) *net.UDPConn {
	t.Helper()
	c, err := p.Dial(t.Context(), "udp", netip.AddrPortFrom(agentAddrs[family], 53).String())
	assert.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.UDPConn)
}

// marker is a query that the process answers, whose reply comes behind that to an earlier packet.
var marker = append([]byte{0xff, 0xff, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, "\x07version\x04bind\x00\x00\x10\x00\x03"...)

// exchange sends a packet. It returns the reply, and whether the kernel gave it; nil for none.
func (n *node) exchange(t *testing.T, c *net.UDPConn, pkt []byte) (reply []byte, byKernel bool) {
	t.Helper()
	before := n.received()
	_, err := c.Write(pkt)
	assert.NoError(t, err)
	_, err = c.Write(marker)
	assert.NoError(t, err)
	reply = receive(t, c)
	byKernel = reply != nil && n.received() == before+1
	if byKernel {
		n.answered.Add(1)
	}
	return reply, byKernel
}

// receive returns the reply that came before that to the marker, or soon after; nil for none.
func receive(t *testing.T, c *net.UDPConn) (reply []byte) {
	t.Helper()
	assert.NoError(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
	for range 2 {
		buf := make([]byte, 4096)
		size, err := c.Read(buf)
		switch {
		case err != nil && reply == nil && errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			t.Fatalf("no reply to the marker: %v", err)
		case size < 2 || buf[0] != 0xff || buf[1] != 0xff:
			reply = buf[:size]
		case reply != nil:
			return reply
		default: // another CPU may have the packet
			assert.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		}
	}
	return reply
}

// prime asks until the kernel answers, or for some tries: it takes an answer once it was offered twice.
func (n *node) prime(t *testing.T, c *net.UDPConn, pkt []byte) bool {
	t.Helper()
	for range 20 {
		if _, byKernel := n.exchange(t, c, pkt); byKernel {
			return true
		}
		time.Sleep(25 * time.Millisecond) // a worker offers a question once within 20 ms
	}
	return false
}

// An upstream answers from records.
type upstream struct{ records map[dns.Question][]dns.RR }

func newUpstream(t *testing.T, records []string) *upstream {
	t.Helper()
	u := &upstream{records: map[dns.Question][]dns.RR{}}
	for _, text := range records {
		rr, err := dns.NewRR(text)
		assert.NoError(t, err)
		q := dns.Question{Name: rr.Header().Name, Qtype: rr.Header().Rrtype, Qclass: dns.ClassINET}
		u.records[q] = append(u.records[q], rr)
	}
	return u
}

// Ask implements [resolve.Asker].
func (u *upstream) Ask(q []byte, _ time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	answer, m := u.answer(q), new(wire.Message)
	if err := m.Parse(answer); err != nil {
		to.Answered(nil, err, batch)
		return
	}
	to.Answered(m, nil, batch)
}

// answer follows aliases, and denies names that have no record.
func (u *upstream) answer(q []byte) []byte {
	m := new(dns.Msg)
	if err := m.Unpack(q); err != nil {
		return nil
	}
	r := new(dns.Msg).SetReply(m)
	r.RecursionAvailable, r.Compress, r.AuthenticatedData = true, true, true
	at := m.Question[0]
	for {
		alias := at
		alias.Qtype = dns.TypeCNAME
		if list := u.records[alias]; len(list) > 0 && at.Qtype != dns.TypeCNAME {
			r.Answer, at.Name = append(r.Answer, list...), list[0].(*dns.CNAME).Target
			continue
		}
		break
	}
	r.Answer = append(r.Answer, u.records[at]...)
	if len(u.records[at]) == 0 {
		soa, _ := dns.NewRR("test. 3600 IN SOA ns.test. host.test. 1 2 3 4 3600")
		r.Ns = []dns.RR{soa}
		if strings.HasPrefix(at.Name, "absent") {
			r.Rcode = dns.RcodeNameError
		}
	}
	packed, err := r.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// newPlan is a plan with the zone of the store, and one upstream for everything else.
func newPlan(t *testing.T, s *zone.Store) *resolve.Plan {
	t.Helper()
	now := time.Now()
	c, err := cache.New(cache.Config{Size: 64 << 20}, now)
	assert.NoError(t, err)
	z, err := zone.New(zone.Config{
		Store: s, Domain: "cluster.local.", TTL: time.Minute, AllSlices: true, NodeZone: "a",
		ReverseZones: []string{"96.10.in-addr.arpa."},
	})
	assert.NoError(t, err)
	ttl := resolve.TTLs{Min: 0, Max: time.Hour, Negative: time.Hour}
	return &resolve.Plan{
		Zones: zone.Zones{z}, Cache: c, UDPSize: wire.SafeUDP, Owner: owner,
		Routes:   []resolve.Route{{Suffix: []byte{0}, Upstream: newUpstream(t, cachedRecords()), TTL: ttl}},
		Deadline: 4 * time.Second, Inflight: 4096, Waiting: 65536,
		FailureTTL: 5 * time.Second, StaleAfter: 200 * time.Millisecond, Cut: true, Keepalive: 10 * time.Second,
		Version: "v9", Hostname: "node-7", Self: "a1b2c3", Loop: func([]byte) bool { return true },
	}
}

// owner returns the owner of a name.
func owner(name []byte) []byte { return zone.Owner(name, wireName("cluster.local.")) }

// wireName is the wire form of a name.
func wireName(name string) []byte {
	buf := make([]byte, 256)
	n, err := dns.PackDomainName(name, buf, 0, nil, false)
	if err != nil {
		panic(err) // the names are ours
	}
	return buf[:n]
}

// query packs a query with RD.
func query(name string, rrtype uint16) []byte {
	return rawQuery(wireName(name), rrtype)
}

func rawQuery(name []byte, rrtype uint16) []byte {
	pkt := append([]byte{0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, name...)
	pkt = binary.BigEndian.AppendUint16(pkt, rrtype)
	return binary.BigEndian.AppendUint16(pkt, dns.ClassINET)
}

// withOPT returns the query with an OPT record.
func withOPT(pkt []byte, size uint16, do bool) []byte {
	opt := []byte{0, 0, 41, byte(size >> 8), byte(size), 0, 0, 0, 0, 0, 0}
	if do {
		opt[7] = 0x80
	}
	out := append(append(make([]byte, 0, len(pkt)+len(opt)), pkt...), opt...)
	out[11] = 1
	return out
}
