// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
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

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// settled is longer than what was asked after an event is not kept for.
const settled = 1500 * time.Millisecond

// TestInvalidate has CoreDNS as the central resolver of two agents that watch nothing but services, the one, and nothing,
// the other. The first may do no more at the API server than docs/cluster.md says.
func TestInvalidate(t *testing.T) { //nolint:tparallel // the API server is gone in the end
	t.Parallel()
	i := &invalidation{cluster: kubetest.Start(t, kubetest.Options{Programs: programs, Users: []string{account}})}
	openShop(t, i.cluster)
	grant(t, i.cluster, rule("", "services"))
	coredns := kubetest.StartCoreDNS(t, i.cluster, `. {
	bind 127.0.0.1
	ready {$READY}
	kubernetes cluster.local in-addr.arpa ip6.arpa {
		kubeconfig {$KUBECONFIG}
	}
}
`)
	i.lines = []string{"resolver: central", central(coredns), "ranges: [10.96.0.0/12]"}
	i.without = startReady(t, settings{cluster: i.lines})
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

// ask is one question in words, with no regard to whether the answer is past its time: a machine that runs all of this
// is slow at times.
func (n *node) ask(name string, qtype uint16) func() string {
	return func() string {
		said, _, _ := strings.Cut(n.answerText(name, qtype), " ede=")
		return said
	}
}

// A watched is a name whose answer a change may give another.
type watched struct {
	name  string
	truth *stateHistory
	*nameWatcher
}

// watch asks for the name, which does not exist yet, until end.
func (n *node) watch(name string, qtype uint16) *watched {
	w := &watched{name: name, truth: &stateHistory{states: []string{"NXDOMAIN"}}}
	w.nameWatcher = watchAnswers(name, w.truth, n.ask(name, qtype))
	return w
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

// times are how long things took.
type times struct {
	mu   sync.Mutex // guards list
	list []time.Duration
}

func (s *times) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, d)
}

// percentile gives the time within which so many of a hundred were done.
func (s *times) percentile(percent int) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.list)
	return s.list[(len(s.list)-1)*percent/100].Round(time.Millisecond)
}

// spread is the distribution in words.
func (s *times) spread() string {
	return fmt.Sprintf("%s (median), %s (90 %%), %s (longest)", s.percentile(50), s.percentile(90), s.percentile(100))
}

// awaitStates waits until every one of the names has seen its state, and takes down how long each took.
func awaitStates(t *testing.T, took *times, states map[*watched]int) {
	t.Helper()
	var tasks sync.WaitGroup
	for w, state := range states {
		tasks.Go(func() {
			d, ok := w.until(state)
			if !ok {
				t.Errorf("%s: state %d of %q was not seen", w.name, state, w.truth.states)
			}
			took.add(d)
		})
	}
	tasks.Wait()
}

// serviceLife is the life of a service with this number, as an agent tells of it, with pauses between the changes.
func (i *invalidation) serviceLife(t *testing.T, n *node, took *times, pause time.Duration, number int) {
	t.Helper()
	first, second := netip.AddrFrom4([4]byte{10, 98, byte(number), 1}), netip.AddrFrom4([4]byte{10, 98, byte(number), 2})
	name := fmt.Sprintf("s-%d", number)
	full := name + ".shop.svc.cluster.local."
	forward := n.watch(full, dns.TypeA)
	reverse := []*watched{n.watch(reverseOf(first), dns.TypePTR), n.watch(reverseOf(second), dns.TypePTR)}
	services := i.cluster.Client().CoreV1().Services("shop")
	put := func(addr netip.Addr) func(context.Context) error {
		return func(ctx context.Context) error {
			return i.cluster.Load(ctx, newService("shop", name, at(addr.String()), ports("http:80")))
		}
	}
	remove := func(ctx context.Context) error { return services.Delete(ctx, name, metav1.DeleteOptions{}) }
	for state, change := range []struct {
		do   func(context.Context) error
		says string
		addr int // whose reverse name changes with it
	}{
		{put(first), "NOERROR " + first.String(), 0},
		{remove, "NXDOMAIN", 0},
		{put(second), "NOERROR " + second.String(), 1},
		{remove, "NXDOMAIN", 1},
	} {
		time.Sleep(pause) // until answers are kept, and for some while then
		pointer := reverse[change.addr]
		forward.truth.begin(change.says)
		if change.says == "NXDOMAIN" {
			pointer.truth.begin("NXDOMAIN")
		} else {
			pointer.truth.begin("NOERROR " + full)
		}
		if err := change.do(t.Context()); err != nil {
			t.Error(err)
			break
		}
		awaitStates(t, took, map[*watched]int{forward: state + 1, pointer: 1 + state%2})
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
	itself.truth.begin("NOERROR")
	service.truth.begin("NOERROR 10.98.200.1")
	kubetest.Apply(t, i.cluster, kubetest.Namespace("born"))
	kubetest.Apply(t, i.cluster, newService("born", "web", at("10.98.200.1"), ports("http:80")))
	var made, gone times
	awaitStates(t, &made, map[*watched]int{itself: 1, service: 1})
	time.Sleep(settled)
	service.truth.begin("NXDOMAIN")
	if err := client.Services("born").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitStates(t, &gone, map[*watched]int{service: 2})
	proctest.Figure(t, "a namespace with a service: both are known after %s, and the service is gone after %s", made.percentile(100), gone.percentile(100))
	itself.truth.begin("NXDOMAIN")
	if err := client.Namespaces().Delete(t.Context(), "born", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	born := kubetest.Namespace("born")
	if _, err := client.Namespaces().Finalize(t.Context(), born, metav1.UpdateOptions{}); err != nil { // as a controller does
		t.Fatal(err)
	}
	awaitStates(t, &gone, map[*watched]int{itself: 2}) // no service tells of that: it takes the TTL of what was kept
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
	if err := i.cluster.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
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
	c := kubetest.Start(t, kubetest.Options{Programs: programs, Users: []string{account}})
	openShop(t, c)
	grant(t, c, rule("", "services"))
	var last atomic.Int32
	last.Store(1)
	addr := proctest.FreeAddr(t)
	serve(t, addr, func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			rr, err := dns.NewRR(fmt.Sprintf("%s 300 IN A 192.0.2.%d", q.Question[0].Name, last.Load()))
			if err != nil {
				panic(err) // the name was parsed already
			}
			m.Answer = []dns.RR{rr}
		}
		return m
	})
	n := startReady(t, settings{cluster: local(kubeconfig(c.Kubeconfig(account)), central(addr))})
	time.Sleep(settled) // the events of the first list
	const nobody = "nobody.svc.cluster.local."
	n.expect(t, expectedAnswer{setName, dns.TypeA, "NOERROR 192.0.2.1"}, expectedAnswer{nobody, dns.TypeA, "NOERROR 192.0.2.1"})
	last.Store(2)
	n.expect(t, expectedAnswer{setName, dns.TypeA, "NOERROR 192.0.2.1"}, expectedAnswer{nobody, dns.TypeA, "NOERROR 192.0.2.1"})
	db, err := c.Client().CoreV1().Services("shop").Get(t.Context(), "db", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	db.Spec.PublishNotReadyAddresses = true
	began := time.Now()
	if _, err := c.Client().CoreV1().Services("shop").Update(t.Context(), db, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.awaitAnswer(t, setName, "NOERROR 192.0.2.2")
	proctest.Figure(t, "local mode: what a central resolver said of a service is dropped %s after the service changed", time.Since(began).Round(time.Millisecond))
	n.expect(t, expectedAnswer{nobody, dns.TypeA, "NOERROR 192.0.2.1"})
}
