// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// A machine's state is what an agent changes on a node, by what shows it.
type state map[string]string

// ignoredLines is what says nothing in it: comments, counters, kube-proxy's table and its chains of Services, the cables of pods,
// lifetimes, and link-local IPv6 addresses, which a new bridge takes a moment for.
func ignoredLines() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^#.*\n|^.*KUBE-S(EP|VC|ERVICES).*\n|^table \S+ kube-proxy\n|^.*(veth|fe80:).*\n| ?\[\d+:\d+\]|_lft \S+`)
}

// nodeState returns a node's state.
func (b *harness) nodeState(t *testing.T, n *kubenode.Node) state {
	t.Helper()
	s := state{}
	for _, command := range []string{
		"ip -o link show", "ip -o addr show", "ip -4 rule show", "ip -6 rule show", "ip -4 route show table all", "ip -6 route show table all",
		"nft list tables", "iptables-save", "ip6tables-save", "iptables-legacy-save", "ip6tables-legacy-save", "ipset list -n",
		"tc qdisc show | sed -n 's/ dev veth[^ ]*//; /clsact/p'",
	} {
		out, err := n.Output(t.Context(), "sh", "-c", command)
		if err != nil {
			t.Fatal(err)
		}
		lines := slices.Sorted(strings.Lines(ignoredLines().ReplaceAllString(out, "")))
		s[n.Name+"# "+command] = strings.Join(lines, "")
	}
	s[n.Name+" BPF programs"] = fmt.Sprint(b.attachedPrograms(t, n))
	return s
}

// nodeStates returns the state of both nodes.
func (b *harness) nodeStates(t *testing.T) state {
	t.Helper()
	all := state{}
	for _, n := range b.Nodes {
		maps.Copy(all, b.nodeState(t, n))
	}
	for _, id := range b.programs { // attached or not
		if p, err := ebpf.NewProgramFromID(id); err == nil {
			all[p.String()] = "loaded"
			_ = p.Close()
		}
	}
	return all
}

// awaitClean waits until the nodes are as they were: kube-proxy takes a moment for what has changed meanwhile.
func (b *harness) awaitClean(t *testing.T, before state) {
	t.Helper()
	var diff string
	began := time.Now()
	for {
		if diff = cmp.Diff(before, b.nodeStates(t)); diff == "" {
			break
		}
		if time.Since(began) > limit {
			t.Fatalf("the nodes are not as they were (-before +after):\n%s", diff)
		}
		time.Sleep(500 * time.Millisecond)
	}
	proctest.Figure(t, "links, addresses, routes, nftables, iptables, ipset and BPF programs as before on both nodes")
}

// runCleanup has every node cleaned by the manifests' own way, a folder of them, after the agents are gone.
func (b *harness) runCleanup(t *testing.T, folder string) {
	t.Helper()
	b.runShell(t, "kubectl apply -k "+folder)
	b.runShell(t, "kubectl -n kube-system rollout status daemonset/node-cache-cleanup --timeout=3m")
	b.runShell(t, "kubectl -n kube-system logs -l app.kubernetes.io/name=node-cache-cleanup -c cleanup --prefix")
	b.runShell(t, "kubectl delete -k "+folder)
}

// trackedFlows are the flows from clients to the agents' addresses that the kernels of the nodes track: those that NAT redirects to the
// fallback, or the others. A few are redirected when an agent gets no processor for its lease.
func (b *harness) trackedFlows(t *testing.T, clients []client, redirected bool) []string {
	t.Helper()
	from := map[string]bool{}
	for _, c := range clients {
		for _, ip := range c.pod.Status.PodIPs {
			from[ip.IP] = true
		}
	}
	var found []string
	for _, n := range b.Nodes {
		for _, family := range []netlink.InetFamily{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			var flows []*netlink.ConntrackFlow
			err := n.Do(func() (err error) {
				flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, family)
				return err
			})
			if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // what it has is enough
				t.Fatal(err)
			}
			for _, f := range flows {
				to, by := f.Forward.DstIP.String(), f.Reverse.SrcIP.String()
				if from[f.Forward.SrcIP.String()] && (to == agentAddr || to == agentAddr6) && (by != to) == redirected {
					found = append(found, n.Name+": "+f.String())
				}
			}
		}
	}
	return found
}

// expectNoFiles fails the test when an agent's file is left on a node.
func (b *harness) expectNoFiles(t *testing.T) {
	t.Helper()
	for _, n := range b.Nodes {
		out, err := n.Output(t.Context(), "find", "/run/node-cache", "/var/lib/node-cache", "!", "-type", "d")
		if err != nil || out != "" {
			t.Errorf("files of agents: %v\n%s", err, out)
		}
	}
	proctest.Figure(t, "no file of an agent on both nodes")
}
