// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

const (
	limit    = 60 * time.Second // for anything: an emulated machine is slow
	linkName = "nodelocaldns"
	byAgent  = "agent"   // who answers when the agent has asked its upstream
	byOthers = "central" // who answers when the rules have sent the query elsewhere
)

func addresses() []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{169, 254, 20, 10}), netip.MustParseAddr("fd00:169:254::10")}
}

// node is a network with an upstream of the agent and a fallback server.
type node struct {
	*nodetest.Network
	program, config string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Network: nodetest.Start(t, nodetest.Options{})}
	var err error
	if n.program, err = exec.LookPath("node-cache"); err != nil {
		t.Skip("no node-cache in the path: hack/test-kernel.sh brings one")
	}
	err = n.Upstream.Do(func() error {
		probe := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "probe"}}
		return errors.Join(netlink.LinkAdd(probe), netlink.LinkDel(probe))
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no dummy links")
	}
	assert.NoError(t, err)
	n.serve(t, n.Upstream.IPv4, byAgent)
	n.serve(t, nodetest.ServiceIPv4(), byOthers)
	n.serve(t, nodetest.ServiceIPv6(), byOthers)
	n.config = filepath.Join(t.TempDir(), "node-cache.yaml")
	text := fmt.Appendf(nil, `
listen: {addresses: [%q, %q], port: 53}
interface: {manage: true, kind: auto}
intercept: {manage: true, fallback: [%q, %q]}
cluster: {resolver: none}
forward: [{zone: ".", to: [%q]}]
admin: {address: "127.0.0.1:9253"}
`, addresses()[0], addresses()[1], nodetest.ServiceIPv4(), nodetest.ServiceIPv6(), n.Upstream.IPv4)
	assert.NoError(t, os.WriteFile(n.config, text, 0o644))
	return n
}

func (n *node) serve(t *testing.T, at netip.Addr, name string) {
	t.Helper()
	s, err := nodetest.Serve(n.Upstream, netip.AddrPortFrom(at, 53), name)
	assert.NoError(t, err)
	t.Cleanup(s.Close)
}

// start starts the agent and waits until it holds both leases.
func (n *node) start(t *testing.T) *proctest.Process {
	t.Helper()
	agent := proctest.Start(t, "agent", n.Node.Command(context.Background(), n.program, "agent", "--config", n.config))
	took := poll(t, "the leases are held", func() error { return n.checkLeases(t) })
	t.Attr("start-to-lease", took.Round(time.Millisecond).String())
	before := n.tracked(t)
	n.awaitServer(t, byAgent)
	for flow := range n.tracked(t) {
		if !before[flow] {
			t.Errorf("a connection to the agent is tracked: %s", flow)
		}
	}
	return agent
}

// tracked are the connections to the agent's addresses that the node's connection tracking knows. Those in which the
// agent asks itself before there are rules are among them. Its tests of the fallback, which another server answers, are not.
func (n *node) tracked(t *testing.T) map[nodetest.Flow]bool {
	t.Helper()
	known := map[nodetest.Flow]bool{}
	for _, addr := range addresses() {
		flows, err := nodetest.ConntrackOf(n.Node, netip.AddrPortFrom(addr, 53))
		assert.NoError(t, err)
		for _, flow := range flows {
			if flow.ReplySrc == flow.Dst {
				known[flow] = true
			}
		}
	}
	return known
}

// checkLeases asks the agent whether it holds both leases: at its own address it answers without them too.
func (n *node) checkLeases(t *testing.T) error {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DialContext: n.Node.Dial, DisableKeepAlives: true}, Timeout: time.Second}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:9253/status", http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	var status struct {
		Node struct {
			Intercept struct{ Leases []struct{ Held bool } }
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
		return err
	}
	for _, l := range status.Node.Intercept.Leases {
		if !l.Held {
			return errors.New("a lease is not held")
		}
	}
	if len(status.Node.Intercept.Leases) != 2 {
		return errors.New("there are not two leases")
	}
	return nil
}

// awaitServer waits until who answers a pod and the node itself everywhere, and says how long that took.
func (n *node) awaitServer(t *testing.T, who string) time.Duration {
	t.Helper()
	return poll(t, who+" answers", func() error {
		for _, from := range []*nodetest.Host{n.Pods[0], n.Node} {
			for _, addr := range addresses() {
				for _, network := range []string{"udp", "tcp"} {
					got, err := nodetest.Ask(from, netip.AddrPortFrom(addr, 53), network)
					if err != nil || got != who {
						return fmt.Errorf("%s asked %s over %s, answered by %q: %w", from.Name, addr, network, got, err)
					}
				}
			}
		}
		return nil
	})
}

// poll waits until good returns no error, and says how long that took.
func poll(t *testing.T, what string, good func() error) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		err := good()
		took := time.Since(start)
		if err == nil {
			return took
		}
		if took > limit {
			t.Fatalf("after %s not: %s: %v", took.Round(time.Millisecond), what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// link looks at the agent's link and its addresses.
func (n *node) link() (kind string, held []netip.Addr, err error) {
	kind, held, err = n.linkOnce()
	for try := 1; errors.Is(err, netlink.ErrDumpInterrupted) && try < 100; try++ { // by what comes or goes meanwhile
		kind, held, err = n.linkOnce()
	}
	return kind, held, err
}

func (n *node) linkOnce() (kind string, held []netip.Addr, err error) {
	err = n.Node.Do(func() error {
		link, err := netlink.LinkByName(linkName)
		if err != nil {
			return err
		}
		kind = link.Type()
		list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		for _, a := range list {
			addr, _ := netip.AddrFromSlice(a.IP)
			if addr = addr.Unmap(); slices.Contains(addresses(), addr) {
				held = append(held, addr)
			}
		}
		return err
	})
	return kind, held, err
}

// awaitRepair waits until the link is there with both addresses.
func (n *node) awaitRepair(t *testing.T) time.Duration {
	t.Helper()
	return poll(t, "the link holds both addresses", func() error {
		_, held, err := n.link()
		if err == nil && len(held) != len(addresses()) {
			err = fmt.Errorf("it holds %v", held)
		}
		return err
	})
}

// removeAndAwaitRepair takes something of the agent's away, and wants it back.
func (n *node) removeAndAwaitRepair(t *testing.T, what string, do func(netlink.Link) error) {
	t.Helper()
	err := n.Node.Do(func() error {
		link, err := netlink.LinkByName(linkName)
		if err != nil {
			return err
		}
		return do(link)
	})
	if err != nil {
		t.Fatalf("removing the %s: %v", what, err)
	}
	took := n.awaitRepair(t)
	t.Attr("removed-"+what+"-back-after", took.Round(100*time.Microsecond).String())
	// 200 ms are promised, and an emulated machine may take its time. But the agent looks by itself every 10 s only:
	// sooner means that it was notified.
	if took > 2*time.Second {
		t.Errorf("the %s was back after %s", what, took)
	}
}

// networkState is all that a node shows of its links, addresses and rules.
func (n *node) networkState(t *testing.T) string {
	t.Helper()
	text := ""
	for _, command := range [][]string{{"ip", "addr"}, {"ip", "rule"}, {"ip", "route", "show", "table", "all"}, {"nft", "list", "ruleset"}} {
		out, err := n.Node.Output(t.Context(), command[0], command[1:]...)
		if errors.Is(err, exec.ErrNotFound) {
			t.Skipf("no program %s", command[0])
		}
		assert.NoError(t, err)
		text += out
	}
	return text
}

// TestDummy is a day of an agent: it takes a dummy link, loses what it put there and puts it back, is killed, and is
// cleaned up after.
func TestDummy(t *testing.T) {
	n := newNode(t)
	before := n.networkState(t)
	agent := n.start(t)

	kind, held, err := n.link()
	if err != nil || kind != "dummy" || len(held) != 2 {
		t.Fatalf("the link is a %q with %v, %v; want a dummy with both addresses", kind, held, err)
	}
	n.removeAndAwaitRepair(t, "address", func(link netlink.Link) error {
		return netlink.AddrDel(link, &netlink.Addr{IPNet: netlink.NewIPNet(addresses()[0].AsSlice())})
	})
	n.removeAndAwaitRepair(t, "link", netlink.LinkDel)
	n.awaitServer(t, byAgent)

	agent.Kill()
	t.Attr("killed-fallback-answers-after", n.awaitServer(t, byOthers).Round(time.Millisecond).String())

	if out, err := n.Node.Output(t.Context(), n.program, "cleanup", "--config", n.config); err != nil {
		t.Fatal(err)
	} else {
		t.Logf("cleanup: %s", out)
	}
	if diff := cmp.Diff(before, n.networkState(t)); diff != "" {
		t.Errorf("cleanup left a difference (-before +after):\n%s", diff)
	}
}
