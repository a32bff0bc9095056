// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// churnInterval is the time between two new pods: 500 a minute.
const churnInterval = time.Minute / 500

// A plugin makes the pair of links of a pod as some CNI plugins do: name in the namespace of the node, eth0 in that of the pod.
type plugin struct {
	name string
	add  func(node, pod *nodetest.Host, name string) error
}

// plugins are the ways to make a pod's links. Each has addresses of its own, which its next pod gets as soon as the last one is gone.
func plugins() []plugin {
	veth := func(name string) *netlink.Veth {
		return &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0"}
	}
	return []plugin{
		{"pair across the namespaces", func(node, pod *nodetest.Host, name string) error {
			return node.Do(func() error { return nodetest.AddVeth(name, pod, "eth0", 0) })
		}},
		{"the pod's end moved", func(node, pod *nodetest.Host, name string) error {
			return node.Do(func() error { return errors.Join(netlink.LinkAdd(veth(name)), move("eth0", pod)) })
		}},
		{"the node's end moved", func(node, pod *nodetest.Host, name string) error {
			return pod.Do(func() error { return errors.Join(netlink.LinkAdd(veth(name)), move(name, node)) })
		}},
		{"the index of the last pod's interface", func(node, pod *nodetest.Host, name string) error {
			_, err := node.Output(context.Background(), "ip", "link", "add", name, "index", "1000", "type", "veth", "peer", "eth0", "netns", pod.Path())
			return err
		}},
	}
}

// move moves a link of the calling thread's namespace to another host.
func move(name string, to *nodetest.Host) error {
	dev, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	ns, err := os.Open(to.Path())
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	return netlink.LinkSetNsFd(dev, int(ns.Fd()))
}

// A churn is pods that come and go on a node.
type churn struct {
	*harness
	clients *ebpf.Map // of the agent; nil: it answers no hits in the kernel
	pods    int

	lost    int // queries
	excused int // packets that the node had no room for, and late answers: a busy machine may lose as many queries

	mu       sync.Mutex // guards the fields below
	asked    nodetest.Report
	attached []time.Duration // from the making of the links to the programs, of each pod
	early    uint64          // answers of the kernel to pods that the agent had not answered
	served   int             // pods that the kernel has answered
}

// A clientKey and a client are those of pkg/kernelhits/bpf/hits.c.
type clientKey struct{ Ifindex, Family uint32 }

type client struct {
	Answered, Passed, Seen, Asked, Hits, Denied, Searched, Bytes uint64
	Addr                                                         [16]byte
	Held                                                         uint64
}

// hits returns how many queries of an interface the kernel has answered.
func (c *churn) hits(index int) (sum uint64, err error) {
	if c.clients == nil {
		return 0, nil
	}
	for _, family := range []uint32{4, 6} {
		var of client
		if err := c.clients.Lookup(clientKey{uint32(index), family}, &of); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return 0, err
		}
		sum += of.Hits
	}
	return sum, nil
}

// run has a plugin's pods come, each with the addresses of the last one, which is just gone.
func (c *churn) run(slot, pods int, p plugin) error {
	tick := time.NewTicker(churnInterval * time.Duration(len(plugins())))
	defer tick.Stop()
	for range pods {
		if err := c.live(slot, p, tick.C); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// live is the life of a pod, which asks as soon as its link is up, until the end.
func (c *churn) live(slot int, p plugin, end <-chan time.Time) (err error) {
	name := fmt.Sprintf("new%d", slot)
	pod, err := c.NewHost(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pod.Close()) }()
	if err := p.add(c.Node, pod, name); err != nil {
		return err
	}
	made := time.Now()
	index, err := c.connect(slot, name, pod)
	if err != nil {
		return err
	}
	attached := make(chan error, 1)
	go func() { attached <- c.awaitPrograms(index, made) }()
	if err := errors.Join(c.Node.AwaitLink(name), pod.AwaitLink("eth0")); err != nil {
		return err
	}
	first := nodetest.Outcome{Sent: time.Now(), Result: nodetest.Lost}
	if first.Who, err = nodetest.Ask(pod, c.dnsAddrs[0], "udp"); err == nil {
		first.Result = nodetest.Answered
	}
	early, err := c.hits(index)
	if err != nil {
		return err
	}
	udp := []nodetest.Load{{Network: "udp", Rate: 50}}
	var meters []*nodetest.Meter
	for _, addr := range c.dnsAddrs {
		m, err := nodetest.StartMeter(nodetest.MeterConfig{Host: pod, Target: addr, Loads: udp})
		if err != nil {
			return err
		}
		meters = append(meters, m)
	}
	<-end
	asked := []nodetest.Outcome{first}
	for _, m := range meters {
		asked = append(asked, m.Stop().Outcomes...)
	}
	if err := <-attached; err != nil {
		return err
	}
	hits, err := c.hits(index)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked.Outcomes = append(c.asked.Outcomes, asked...)
	c.early += early
	if hits > 0 {
		c.served++
	}
	return err
}

// connect sets both ends of a pod's links up, with the addresses of a slot. It returns the index of the node's end.
func (c *churn) connect(slot int, name string, pod *nodetest.Host) (index int, err error) {
	prefixes := func(host int) []netip.Prefix {
		return []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.202.%d.%d/24", slot, host)),
			netip.MustParsePrefix(fmt.Sprintf("fd00:202:%d::%d/64", slot, host)),
		}
	}
	err = c.Node.Do(func() error {
		if err := nodetest.SetLinkUp(name, prefixes(1)...); err != nil {
			return err
		}
		dev, err := netlink.LinkByName(name)
		if err == nil {
			index = dev.Attrs().Index
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return index, pod.Do(func() error {
		if err := nodetest.SetLinkUp("eth0", prefixes(2)...); err != nil {
			return err
		}
		for _, by := range prefixes(1) {
			if err := nodetest.AddRoute(netip.Prefix{}, by.Addr()); err != nil {
				return err
			}
		}
		return nil
	})
}

// awaitPrograms waits until an interface has both programs.
func (c *churn) awaitPrograms(index int, made time.Time) error {
	if c.clients == nil {
		return nil
	}
	return c.Node.Do(func() error {
		for time.Since(made) < time.Minute {
			at, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress}) // the last of them
			if err != nil {
				return err
			}
			if len(at.Programs) > 0 {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.attached = append(c.attached, time.Since(made))
				return nil
			}
			time.Sleep(time.Millisecond)
		}
		return errors.New("an interface has no program after a minute")
	})
}

// agentMap opens a map of an agent.
func agentMap(t *testing.T, pid int, name string) *ebpf.Map {
	t.Helper()
	for _, o := range bpfObjects(t, pid) {
		if o.kind != "map" {
			continue
		}
		m, err := ebpf.NewMapFromID(ebpf.MapID(o.id))
		assert.NoError(t, err)
		info, err := m.Info()
		assert.NoError(t, err)
		if info.Name == name {
			t.Cleanup(func() { _ = m.Close() })
			return m
		}
		_ = m.Close()
	}
	t.Fatalf("the agent has no map %s", name)
	return nil
}

// clientCount returns how many clients the agent has in the kernel.
func (c *churn) clientCount(t *testing.T) (n int) {
	t.Helper()
	var key clientKey
	var of client
	all := c.clients.Iterate()
	for all.Next(&key, &of) {
		n++
	}
	assert.NoError(t, all.Err())
	return n
}

// An owned is what an agent has.
type owned struct {
	files, bpf, clients int
	resident            int64 // bytes
}

func (c *churn) owned(t *testing.T, a daemon) (o owned) {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", a.PID()))
	assert.NoError(t, err)
	usage, err := proctest.UsageOf(a.PID())
	assert.NoError(t, err)
	o = owned{files: len(files), bpf: len(bpfObjects(t, a.PID())), resident: usage.RSS}
	if c.clients != nil {
		o.clients = c.clientCount(t)
	}
	return o
}

// TestKernelChurn has 500 pods a minute come and go, under the load of others, without hits in the kernel and with them. With them
// no more queries are lost, and nothing is left of any pod.
func TestKernelChurn(t *testing.T) { //nolint:tparallel // a soak runs one subtest at a time
	t.Parallel()
	off := &churn{harness: newHarness(t, options{extra: "kernel: {hits: off}\n"})}
	on := &churn{harness: newHarness(t, options{extra: "kernel: {hits: on}\n"})}
	t.Run("both", func(t *testing.T) {
		for name, c := range map[string]*churn{"hits off": off, "hits on": on} {
			t.Run(name, func(t *testing.T) {
				if !proctest.Soak() { // its figures are of one at a time
					t.Parallel()
				}
				c.measure(t, name)
			})
		}
	})
	if on.lost > off.lost+on.excused {
		t.Errorf("%d queries lost with hits in the kernel, %d without; %d are excused", on.lost, off.lost, on.excused)
	}
	assert.Equal(t, "answers of the kernel before the agent's first", 0, on.early)
	if on.served == 0 {
		t.Fatal("the kernel has answered no pod")
	}
	slices.Sort(on.attached)
	n := len(on.attached)
	proctest.Figure(t, "churn: programs at an interface %s after it was made (median), %s (p99), %s (longest)",
		ms(on.attached[n/2]), ms(on.attached[n*99/100]), ms(on.attached[n-1]))
}

// measure runs an agent while pods come and go, and looks for what is left of them.
func (c *churn) measure(t *testing.T, name string) {
	t.Helper()
	a := c.start(t)
	if name == "hits on" {
		c.clients = agentMap(t, a.PID(), "clients")
		proctest.Eventually(t, time.Minute, "the interfaces have programs", func() bool { return c.clientCount(t) == 2*3 })
	}
	dropped := c.drops(t)
	l := c.load(t)
	l.awaitServer(t, byAgent, l.began, time.Minute)
	before := c.owned(t, a)
	took := c.runAll(t)
	others := l.merge(l.stop(t))
	all := nodetest.Report{Outcomes: slices.Concat(others.Outcomes, c.asked.Outcomes)}
	overflow, _ := c.drops(t).since(dropped)
	c.lost, c.excused = all.Lost()-all.Count(nodetest.Late), overflow+all.Count(nodetest.Late)
	if c.lost > c.excused {
		t.Errorf("lost: new pods: %s; others: %s; the kernel has dropped %d", c.asked, others, overflow)
	}
	proctest.Eventually(t, time.Minute, "nothing is left of the pods", func() bool {
		now := c.owned(t, a)
		return now.clients == before.clients && now.bpf == before.bpf && now.files <= before.files
	}, func() string { return fmt.Sprintf("before %+v, now %+v", before, c.owned(t, a)) })
	grown := c.owned(t, a).resident - before.resident
	if proctest.Soak() && grown > 8<<20 {
		t.Errorf("the agent has grown by %d KiB", grown>>10)
	}
	proctest.Figure(t, "churn, %s: %d pods in %s, %d of them answered by the kernel: %s; others: %s; the agent has grown by %d KiB", name,
		c.pods, ms(took), c.served, c.asked, others, grown>>10)
}

// runAll has the pods of all plugins come and go. It returns how long that took.
func (c *churn) runAll(t *testing.T) time.Duration {
	t.Helper()
	began, each := time.Now(), proctest.OrdinaryOrSoak(5, 250)
	c.pods = each * len(plugins())
	var group sync.WaitGroup
	for slot, p := range plugins() {
		group.Go(func() {
			time.Sleep(time.Duration(slot) * churnInterval)
			if err := c.run(slot, each, p); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	return time.Since(began)
}
