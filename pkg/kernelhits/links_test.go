// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestPods has the kernel answer pods that were there before the agent.
func TestPods(t *testing.T) {
	for _, hook := range hooks() {
		t.Run(hook, func(t *testing.T) {
			n := newNode(t, hook, nodetest.Options{})
			for _, pod := range n.Pods {
				n.await(t, pod)
			}
			assert.Equal(t, "hook", hook, n.Hook())
			for name, p := range map[string]interface {
				Info() (*ebpf.ProgramInfo, error)
			}{"answer_hit": n.objects.AnswerHit, "permit_client": n.objects.PermitClient} {
				info, err := p.Info()
				assert.NoError(t, err)
				verified, _ := info.VerifiedInstructions()
				t.Logf("%s: the verifier processed %d instructions", name, verified)
			}
		})
	}
}

// TestInterfaces changes the interface of a pod while pods ask the agent, without hits in the kernel and with them. Either way only this
// pod loses queries, and only during the change. With hits each change is followed by answers of the kernel.
func TestInterfaces(t *testing.T) {
	for _, hook := range hooks() {
		for _, who := range []string{byAgent, byKernel} {
			t.Run(hook+", by the "+who, func(t *testing.T) {
				n := newNode(t, hook, nodetest.Options{})
				n.Set(who == byKernel)
				for _, tt := range changes() {
					t.Log(tt.name) // says at which change a wait fails
					l := n.load(t, who)
					assert.NoError(t, n.Node.Do(func() error {
						dev, err := netlink.LinkByName("pod0")
						if err != nil {
							return err
						}
						return tt.change(n, dev)
					}))
					n.awaitPrograms(t)
					proctest.Figure(t, "%s, hits by the %s: %s: %d queries of its pod lost", hook, who, tt.name, l.stop(t, who))
				}
				n.stop()
				n.expectNothing(t)
			})
		}
	}
}

// A change is one of the interface of a pod.
type change struct {
	name   string
	change func(n *node, dev netlink.Link) error
}

func changes() []change {
	return []change{
		{"another MTU", func(_ *node, dev netlink.Link) error { return netlink.LinkSetMTU(dev, 1300) }},
		{"down, with another name, and up", func(_ *node, dev netlink.Link) error {
			return errors.Join(netlink.LinkSetDown(dev), netlink.LinkSetName(dev, "other"), netlink.LinkSetName(dev, "pod0"), netlink.LinkSetUp(dev), addRoutes(dev))
		}},
		{"another program removes clsact", func(n *node, dev netlink.Link) error {
			var added error
			if n.Hook() == hookTCX { // it has none
				added = netlink.QdiscAdd(clsactOf(dev.Attrs().Index))
			}
			return errors.Join(added, netlink.QdiscDel(clsactOf(dev.Attrs().Index)))
		}},
		{"another program detaches the programs", func(n *node, dev netlink.Link) error {
			n.links.mu.Lock()
			defer n.links.mu.Unlock()
			var errs []error
			for _, p := range n.links.attached[dev.Attrs().Index].programs {
				errs = append(errs, detachAsOther(p))
			}
			return errors.Join(errs...)
		}},
	}
}

// detachAsOther detaches a program as another process does.
func detachAsOther(p attachedProgram) error {
	of, ok := p.(*tcxLink)
	if !ok {
		return netlink.FilterDel(&p.(*filter).BpfFilter)
	}
	info, err := of.Info()
	if err != nil {
		return err
	}
	other, err := link.NewFromID(info.ID)
	if err != nil {
		return err
	}
	return errors.Join(other.Detach(), other.Close())
}

// A load is pods that ask all the time, over IPv4 and IPv6: first the one whose interface changes.
type load []*nodetest.Meter

// loadRate is so low that the kernel and the agent's sockets hold what a client sends in a second: so long a packet may wait for the
// address of its next hop, after a link was down.
const loadRate = 50

// load starts a load, and waits until it gets answers from who.
func (n *node) load(t *testing.T, who string) (l load) {
	t.Helper()
	for _, pod := range n.Pods {
		for _, addr := range agentAddrs() {
			m, err := nodetest.StartMeter(nodetest.MeterConfig{
				Host: pod, Target: addr, Loads: []nodetest.Load{{Network: "udp", Rate: loadRate}}, Timeout: 5 * time.Second,
			})
			assert.NoError(t, err)
			t.Cleanup(func() { m.Stop() })
			l = append(l, m)
		}
	}
	l.await(t, who, time.Now())
	return l
}

// await waits until each client gets an answer from who to a query that it sent at or after a time.
func (l load) await(t *testing.T, who string, since time.Time) {
	t.Helper()
	for _, m := range l {
		if _, ok := m.Await(who, since, limit); !ok {
			t.Fatalf("not answered by %s: %s", who, m.Report())
		}
	}
}

// stop ends the load after a change, and returns what the pod of the interface has lost during the change: the kernel drops packets
// while a link is down, and when clsact is removed. Nothing else may be lost.
func (l load) stop(t *testing.T, who string) (lost int) {
	t.Helper()
	changed := time.Now()
	l.await(t, who, changed)
	reports := make([]nodetest.Report, len(l))
	var stopped sync.WaitGroup
	for i, m := range l {
		stopped.Go(func() { reports[i] = m.Stop() }) // each waits for its last answers
	}
	stopped.Wait()
	for i, all := range reports {
		if i < 2 {
			lost += all.Lost()
			all = all.Between(changed, time.Now())
		}
		if all.Lost() > 0 {
			t.Errorf("client %d: %s", i, all)
		}
	}
	return lost
}

// awaitPrograms waits until every interface has its programs again.
func (n *node) awaitPrograms(t *testing.T) {
	t.Helper()
	proctest.Eventually(t, limit, "the programs are attached", func() (all bool) {
		assert.NoError(t, n.Node.Do(func() error {
			n.links.mu.Lock()
			defer n.links.mu.Unlock()
			all = len(n.links.attached) == 3
			for _, a := range n.links.attached {
				all = all && a.problem() == ""
			}
			return nil
		}))
		return all
	})
}

// expectNothing looks for what an agent that has ended has left.
func (n *node) expectNothing(t *testing.T) {
	t.Helper()
	attached, failed := n.Interfaces()
	assert.Equal(t, "interfaces after the end", 0, attached)
	assert.Same(t, "failed interfaces", nil, failed)
	assert.NoError(t, n.Node.Do(func() error {
		list, err := netlink.LinkList()
		for _, dev := range list {
			assert.Equal(t, "a clsact qdisc on "+dev.Attrs().Name, false, hasClsact(t, dev.Attrs().Index))
		}
		return err
	}))
	assert.Equal(t, "clients after the end", 0, n.clientCount(t))
}

// addRoutes adds the routes of the pod's link again, which it lost while it was down.
func addRoutes(dev netlink.Link) error {
	addr, err := netlink.ParseAddr("fd00:200:0::1/64")
	if err != nil {
		return err
	}
	addr.Flags = unix.IFA_F_NODAD
	return netlink.AddrReplace(dev, addr)
}

// clientCount returns the number of entries of the map.
func (n *node) clientCount(t *testing.T) (count int) {
	t.Helper()
	var key hitsClientKey
	var value hitsClient
	entries := n.objects.Clients.Iterate()
	for entries.Next(&key, &value) {
		count++
	}
	assert.NoError(t, entries.Err())
	return count
}

// TestChurn adds and removes pods. Each is answered by the kernel, and nothing is left of any.
func TestChurn(t *testing.T) {
	for _, hook := range hooks() {
		t.Run(hook, func(t *testing.T) {
			n := newNode(t, hook, nodetest.Options{})
			n.await(t, n.Pods[0])
			n.awaitInterfaces(t, 3)
			before := openFiles(t)
			for i := range proctest.OrdinaryOrSoak(5, 500) {
				name := "new" + strconv.Itoa(i)
				assert.NoError(t, n.Node.Do(func() error { return nodetest.AddVeth(name, n.Pods[1], name, 0) }))
				n.awaitInterfaces(t, 4)
				assert.NoError(t, n.Node.Do(func() error {
					dev, err := netlink.LinkByName(name)
					return errors.Join(err, netlink.LinkDel(dev))
				}))
				n.awaitInterfaces(t, 3)
			}
			assert.Equal(t, "clients", 2*3, n.clientCount(t))
			assert.Same(t, "open files", before, openFiles(t))
			n.await(t, n.Pods[0])
		})
	}
}

// awaitInterfaces waits until so many interfaces have the programs.
func (n *node) awaitInterfaces(t *testing.T, want int) {
	t.Helper()
	proctest.Eventually(t, limit, fmt.Sprintf("%d interfaces", want), func() bool {
		attached, failed := n.Interfaces()
		return attached == want && len(failed) == 0
	})
}

// openFiles returns the number of open files of the kinds that the package opens.
func openFiles(t *testing.T) map[string]int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	assert.NoError(t, err)
	count := map[string]int{}
	for _, f := range list {
		to, _ := os.Readlink("/proc/self/fd/" + f.Name()) // the folder's own is closed
		if kind, _, _ := strings.Cut(to, "["); strings.Contains(kind, "bpf") {
			count[to]++
		}
	}
	return count
}

// TestLostEvents has so many changes of interfaces that the socket of the events overflows.
func TestLostEvents(t *testing.T) {
	n := newNode(t, "tcx", nodetest.Options{})
	n.awaitInterfaces(t, 3)
	n.links.mu.Lock() // the reader of events waits
	assert.NoError(t, n.Node.Do(func() error {
		dev, err := netlink.LinkByName("pod0")
		if err != nil {
			return err
		}
		for i := range 3000 {
			if err := netlink.LinkSetMTU(dev, 1400+i%2); err != nil {
				return err
			}
		}
		return errors.Join(netlink.LinkDel(dev), nodetest.AddVeth("late", n.Pods[1], "late", 0))
	}))
	n.links.mu.Unlock()
	proctest.Eventually(t, limit, "the interfaces are known", func() bool {
		n.links.mu.Lock()
		defer n.links.mu.Unlock()
		var names []string
		for _, a := range n.links.attached {
			names = append(names, a.name)
		}
		slices.Sort(names)
		return slices.Equal(names, []string{"late", "pod1", "up0"})
	})
}

// TestAttribution counts the answers to a pod: once, and also those between the last count and the end of the interface.
func TestAttribution(t *testing.T) {
	n := newNode(t, "clsact", nodetest.Options{})
	pod := n.Pods[0]
	var got []Client
	n.links.mu.Lock()
	n.cfg.Attribute = func(c Client) { got = append(got, c) }
	n.links.mu.Unlock()
	n.await(t, pod)
	n.links.count()
	n.links.count()
	n.await(t, pod)
	assert.NoError(t, n.Node.Do(func() error {
		dev, err := netlink.LinkByName("pod0")
		return errors.Join(err, netlink.LinkDel(dev))
	}))
	n.awaitInterfaces(t, 2)
	want := []Client{{Addr: pod.IPv4, Answered: 1, Bytes: 54}, {Addr: pod.IPv6, Answered: 1, Bytes: 54}}
	assert.Same(t, "clients", append(want, want...), got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
}
