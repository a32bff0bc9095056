// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/subscribe"
)

// settled is longer than what was asked after an event is not kept for.
const settled = 1500 * time.Millisecond

// TestInvalidate has CoreDNS as the central resolver of two agents that watch nothing but services, the one, and nothing,
// the other. The first may do no more at the API server than docs/cluster.md says. The other one tries to subscribe, which CoreDNS does not
// know: it says so once, and answers live by their TTL.
func TestInvalidate(t *testing.T) { //nolint:tparallel // the API server is gone in the end
	t.Parallel()
	i := &invalidation{cluster: kubetest.Start(t, kubetest.Options{Users: []string{account}})}
	openShop(t, i.cluster)
	grant(t, i.cluster, rule("", "services"))
	i.lines = []string{"resolver: central", central(startCoreDNS(t, i.cluster, netip.AddrPort{}, "cluster.local").Addr()), "ranges: [10.96.0.0/12]"}
	subscribing := slices.Clone(i.lines)
	subscribing[1] = strings.Replace(subscribing[1], "}", ", push: on}", 1)
	i.without = startReady(t, settings{cluster: subscribing})
	i.with = startReady(t, settings{cluster: i.asUser(account)})
	proctest.Eventually(t, limit, "services are in sync", func() bool { return i.with.status(t).kind(t, "service").Synced })
	if s := i.with.status(t); len(s.Problems) > 0 || len(s.Cluster.Kinds) != 1 {
		t.Errorf("/status: problems %+v, kinds %+v; want none, and services alone", s.Problems, s.Cluster.Kinds)
	}
	if s := i.without.status(t); s.Cluster.Requests != 0 || len(s.Cluster.Kinds) != 0 {
		t.Errorf("/status without: %d requests to the API server, kinds %+v; want none", s.Cluster.Requests, s.Cluster.Kinds)
	}
	time.Sleep(settled) // the events of the first list
	t.Run("services", i.testServices)
	if p := i.without.status(t).Cluster.Central.Push; p == nil || p.Sessions != 1 || p.Kept != 0 || !strings.HasSuffix(p.Why, subscribe.NoPush) {
		t.Errorf("push at CoreDNS: %+v", p)
	}
	t.Run("namespace", i.testNamespace)
	t.Run("no API server", i.testNoServer)
}

// invalidation is a cluster, and agents that ask a central resolver.
type invalidation struct {
	cluster       *kubetest.Cluster
	lines         []string // of the cluster section, for an agent that hears of nothing
	with, without *node
}

// asUser are the lines of one that hears of services as this user.
func (i *invalidation) asUser(name string) []string {
	return append(slices.Clone(i.lines), "invalidate: true", kubeconfig(i.cluster.Kubeconfig(name)))
}

// testServices makes services, deletes them and makes them again with another address, at each of which their names and the
// reverse names are asked for 100 times a second. No answer is older than the one before.
func (i *invalidation) testServices(t *testing.T) {
	const lanes, rounds = 3, 3
	var with, without times
	var tasks sync.WaitGroup
	for lane := range lanes {
		tasks.Go(func() {
			for round := range rounds {
				i.serviceLife(t, i.with, &with, settled, 10*lane+round)
			}
		})
		tasks.Go(func() { i.serviceLife(t, i.without, &without, settled+time.Duration(lane)*time.Second, 100+lane) })
	}
	tasks.Wait()
	if t.Failed() {
		return
	}
	proctest.Figure(t, "%d answers changed, central resolver CoreDNS: right after %s", len(with.list), with.spread())
	proctest.Figure(t, "%d answers changed, without cluster.invalidate: right after %s", len(without.list), without.spread())
	if got := with.percentile(50); got > time.Second || got >= without.percentile(50) {
		t.Errorf("right after %s with events and %s without", with.spread(), without.spread())
	}
	if cached := i.with.status(t).Queries.BySource["cache"]; cached == 0 {
		t.Error("nothing was answered from the cache, so nothing was dropped")
	}
}

// serviceLife is the life of a service with this number, as an agent tells of it, with pauses between the changes.
func (i *invalidation) serviceLife(t *testing.T, n *node, took *times, pause time.Duration, number int) {
	t.Helper()
	first, second := netip.AddrFrom4([4]byte{10, 98, byte(number), 1}), netip.AddrFrom4([4]byte{10, 98, byte(number), 2})
	name := fmt.Sprintf("s-%d", number)
	full := name + ".shop.svc.cluster.local."
	forward := n.watch(full, dns.TypeA)
	reverse := []*nameWatcher{n.watch(reverseOf(first), dns.TypePTR), n.watch(reverseOf(second), dns.TypePTR)}
	for state := range 4 {
		time.Sleep(pause)                                                       // until answers are kept, and for some while then
		addr, pointer := []netip.Addr{first, second}[state/2], reverse[state/2] // the reverse name that changes too
		var err error
		if state%2 == 0 {
			forward.begin("NOERROR " + addr.String())
			pointer.begin("NOERROR " + full)
			err = i.cluster.Load(t.Context(), newService("shop", name, at(addr.String()), ports("http:80")))
		} else {
			forward.begin("NXDOMAIN")
			pointer.begin("NXDOMAIN")
			err = i.cluster.Client().CoreV1().Services("shop").Delete(t.Context(), name, metav1.DeleteOptions{})
		}
		if err != nil {
			t.Error(err)
			break
		}
		changed := time.Now()
		forward.await(t, took, changed)
		pointer.await(t, took, changed)
	}
	for _, w := range append(reverse, forward) {
		w.end(t)
	}
}

// reverseOf is the name of an address's PTR record.
func reverseOf(addr netip.Addr) string {
	name, err := dns.ReverseAddr(addr.String())
	if err != nil {
		panic(err) // it is an address
	}
	return name
}

// testNamespace is known by its services: the first makes it exist, the last one's end has it asked for again.
func (i *invalidation) testNamespace(t *testing.T) {
	const space, name = "born.svc.cluster.local.", "web.born.svc.cluster.local."
	client := i.cluster.Client().CoreV1()
	itself, service := i.with.watch(space, dns.TypeA), i.with.watch(name, dns.TypeA)
	time.Sleep(settled)
	itself.begin("NOERROR")
	service.begin("NOERROR 10.98.200.1")
	kubetest.Apply(t, i.cluster, kubetest.Namespace("born"))
	kubetest.Apply(t, i.cluster, newService("born", "web", at("10.98.200.1"), ports("http:80")))
	var made, gone times
	changed := time.Now()
	itself.await(t, &made, changed)
	service.await(t, &made, changed)
	time.Sleep(settled)
	service.begin("NXDOMAIN")
	assert.NoError(t, client.Services("born").Delete(t.Context(), "web", metav1.DeleteOptions{}))
	service.await(t, &gone, time.Now())
	proctest.Figure(t, "a namespace with a service: both are known after %s, and the service is gone after %s", made.percentile(100), gone.percentile(100))
	itself.begin("NXDOMAIN")
	assert.NoError(t, client.Namespaces().Delete(t.Context(), "born", metav1.DeleteOptions{}))
	born := kubetest.Namespace("born")
	if _, err := client.Namespaces().Finalize(t.Context(), born, metav1.UpdateOptions{}); err != nil { // as a controller does
		t.Fatal(err)
	}
	itself.await(t, &gone, time.Now()) // no service tells of that: it takes the TTL of what was kept
	itself.end(t)
	service.end(t)
}

// testNoServer takes the API server away: what is asked is answered as long as the central resolver can, also by an agent that
// starts meanwhile. When it is there again, changes are heard of again.
func (i *invalidation) testNoServer(t *testing.T) {
	var list []expectedQuery
	for _, q := range steady() {
		if q.qtype != dns.TypeSRV {
			// A server that starts has the CPUs, and after 200 ms the agent gives what it kept (serveStale.after).
			q.right = append(q.right, staleText(q.right[0]))
			list = append(list, q)
		}
	}
	load := startLoad(t, i.with.settings.addr, inTurn(list...))
	i.cluster.KillAPIServer()
	time.Sleep(6 * time.Second) // longer than the TTL
	// A server that has just started forbids all to everybody but the administrator for a moment.
	restarted := startReady(t, settings{cluster: i.asUser(kubetest.Admin)})
	for _, q := range list {
		restarted.expect(t, expectedAnswer{q.name, q.qtype, q.right[0]})
	}
	assert.NoError(t, i.cluster.StartAPIServer(t.Context()))
	proctest.Eventually(t, limit, "services are in sync", func() bool { return restarted.status(t).kind(t, "service").Synced })
	both := []*node{i.with, restarted}
	var before []int
	for _, n := range both {
		before = append(before, n.status(t).kind(t, "service").Events)
	}
	kubetest.Apply(t, i.cluster, shopService("again", "10.98.201.1"))
	for k, n := range both { // CoreDNS, which they ask, may hear of it half a minute later
		proctest.Eventually(t, limit, "changes are heard of again", func() bool { return n.status(t).kind(t, "service").Events > before[k] })
	}
	load.end(t)
}

// TestEventsOfLocalZone has an agent that may read services only and asks a central resolver for sets of endpoints. What
// that said, for minutes, is dropped when the service changes.
func TestEventsOfLocalZone(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t, kubetest.Options{Users: []string{account}})
	openShop(t, c)
	grant(t, c, rule("", "services"))
	var last atomic.Int32
	last.Store(1)
	addr := serveAddress(t, func() string { return fmt.Sprintf("300 IN A 192.0.2.%d", last.Load()) })
	n := startReady(t, settings{cluster: local(kubeconfig(c.Kubeconfig(account)), central(addr))})
	for _, kind := range []string{"endpointslice", "namespace"} {
		if k := n.status(t).kind(t, kind); k.Synced || !strings.HasPrefix(k.LastError, "forbidden: ") {
			t.Errorf("/status says of %s %+v, want forbidden", kind, k)
		}
	}
	time.Sleep(settled) // the events of the first list
	const absent = "absent.svc.cluster.local."
	n.expect(t, expectedAnswer{setName, dns.TypeA, "NOERROR 192.0.2.1"}, expectedAnswer{absent, dns.TypeA, "NOERROR 192.0.2.1"})
	last.Store(2)
	n.expect(t, expectedAnswer{setName, dns.TypeA, "NOERROR 192.0.2.1"}, expectedAnswer{absent, dns.TypeA, "NOERROR 192.0.2.1"})
	db, err := c.Client().CoreV1().Services("shop").Get(t.Context(), "db", metav1.GetOptions{})
	assert.NoError(t, err)
	db.Spec.PublishNotReadyAddresses = true
	began := time.Now()
	if _, err := c.Client().CoreV1().Services("shop").Update(t.Context(), db, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.awaitAnswer(t, setName, "NOERROR 192.0.2.2")
	proctest.Figure(t, "local mode: what a central resolver said of a service is dropped %s after the service changed", time.Since(began).Round(time.Millisecond))
	n.expect(t, expectedAnswer{absent, dns.TypeA, "NOERROR 192.0.2.1"})

	grant(t, c, rule("", "services", "namespaces"), rule("discovery.k8s.io", "endpointslices"))
	n.awaitAnswer(t, setName, "NOERROR 10.1.2.1 10.1.2.2")
	n.awaitAnswer(t, "empty.svc.cluster.local.", "NXDOMAIN")
	if s := n.status(t); len(s.Problems) > 0 {
		t.Errorf("/status once all is granted: %+v, want no problems", s.Problems)
	}
}
