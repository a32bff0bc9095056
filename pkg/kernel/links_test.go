// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
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
				n.await(t, pod, byKernel)
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

// TestInterfaces changes the interface of a pod while the agent runs. Each change is followed by answers of the kernel, where it
// may answer.
func TestInterfaces(t *testing.T) {
	for _, hook := range hooks() {
		t.Run(hook, func(t *testing.T) {
			n := newNode(t, hook, nodetest.Options{})
			pod := n.Pods[0]
			for _, tt := range []struct {
				name   string
				change func(dev netlink.Link) error
			}{
				{"as it was", func(netlink.Link) error { return nil }},
				{"another MTU", func(dev netlink.Link) error { return netlink.LinkSetMTU(dev, 1300) }},
				{"down, with another name, and up", func(dev netlink.Link) error {
					return errors.Join(netlink.LinkSetDown(dev), netlink.LinkSetName(dev, "other"), netlink.LinkSetUp(dev), addRoutes(dev))
				}},
				{"another program removes clsact", func(dev netlink.Link) error {
					if n.Hook() == "tcx" { // it has none
						return errors.Join(netlink.QdiscAdd(clsactOf(dev.Attrs().Index)), netlink.QdiscDel(clsactOf(dev.Attrs().Index)))
					}
					return netlink.QdiscDel(clsactOf(dev.Attrs().Index))
				}},
			} {
				assert.NoError(t, n.Node.Do(func() error {
					dev, err := netlink.LinkByName("pod0")
					if err != nil {
						dev, err = netlink.LinkByName("other")
					}
					if err != nil {
						return err
					}
					return tt.change(dev)
				}))
				t.Log(tt.name) // says at which change await fails
				n.await(t, pod, byKernel)
			}
			n.stop()
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
		})
	}
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
			n.await(t, n.Pods[0], byKernel)
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
			n.await(t, n.Pods[0], byKernel)
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

// TestPanicEndsNothing has the source of an answer panic.
func TestPanicEndsNothing(t *testing.T) {
	k := &Kernel{log: slog.New(slog.DiscardHandler)}
	k.guard(t.Context(), func() { panic("a defect") })
}

// TestLapsed takes the agent's lease away. Everything passes on until it is back.
func TestLapsed(t *testing.T) {
	n := newNode(t, "tcx", nodetest.Options{})
	n.await(t, n.Pods[0], byKernel)
	for _, lapsed := range []bool{true, false} {
		n.cfg.Lapsed = func() bool { return lapsed }
		n.renew()
		n.await(t, n.Pods[0], map[bool]string{true: byAgent, false: byKernel}[lapsed])
	}
}
