// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestPodIdentity starts and ends 10 pods a second, in place of the kubelet of node1. An address is used again as soon as queries from it
// have no pod any more, often before the API server has deleted the pod. Each pod asks for its own name, from the moment it starts to
// its end: the query log must never have another pod beside it. It also asks for a name with the first suffix of its search path, which
// must not lead to one of another pod.
func TestPodIdentity(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t, kubetest.Options{Users: []string{account}})
	kubetest.Apply(t, c, kubetest.Namespace("shop"))
	grant(t, c, rule("", "pods"))
	n := startReady(t, settings{
		root: serve(t, searchAnswer), cluster: []string{kubeconfig(c.Kubeconfig(account))},
		more: fmt.Sprintf("snapshot: {folder: %q}", t.TempDir()), queries: "all", env: []string{"NODE_NAME=node1"}, socket: proctest.SocketPath(t),
	})
	n.settings.more += "\npods: {identity: api, searchPath: on}" // a reload turns it on
	n.write(t)
	i := &identities{t: t, cluster: c, node: n, seen: map[string]*sightings{}}
	ctx, cancel := context.WithCancel(t.Context())
	var reader, addresses sync.WaitGroup
	reader.Go(func() { i.readLog(ctx) })
	until := time.Now().Add(proctest.OrdinaryOrSoak(20*time.Second, 10*time.Minute))
	for k := range 5 {
		addresses.Go(func() {
			for round := 0; time.Now().Before(until) && !t.Failed(); round++ {
				i.life(k, round)
			}
		})
	}
	addresses.Wait()
	cancel()
	reader.Wait()
	i.report(until)
	if s := n.status(t); s.Cluster.Requests > proctest.OrdinaryOrSoak(1, 4) || len(s.Problems) > 0 {
		t.Errorf("/status: %d requests to the API server, problems %+v; want one watch", s.Cluster.Requests, s.Problems)
	}
	i.restart()
}

// The suffixes of every pod, and of the pod with a name.
const (
	firstSuffix = "first.test."
	ownSuffix   = "own.test."
)

// searchAnswer denies names with the first suffix, and has an address for all others.
func searchAnswer(q *dns.Msg) *dns.Msg {
	m, name := new(dns.Msg).SetReply(q), q.Question[0].Name
	if strings.HasSuffix(strings.ToLower(name), firstSuffix) {
		m.Rcode = dns.RcodeNameError
	} else if q.Question[0].Qtype == dns.TypeA {
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}, A: net.IPv4(192, 0, 2, 1)}}
	}
	return m
}

// restart starts the agent again while the API server is down: the pods are those of the snapshot, and marked.
func (i *identities) restart() {
	i.t.Helper()
	addr := netip.MustParseAddr("127.10.0.200")
	asks := func(what, want string) {
		i.t.Helper()
		var got string
		proctest.Eventually(i.t, limit, what, func() bool {
			ctx, cancel := context.WithTimeout(i.t.Context(), 10*time.Millisecond)
			defer cancel()
			i.ask(ctx, addr, "stays")
			log := i.node.Stderr.String()
			got, _, _ = strings.Cut(log[max(0, strings.LastIndex(log, "name=stays.")):], "\n")
			return strings.HasSuffix(got, want)
		}, func() string { return got })
	}
	kubetest.Apply(i.t, i.cluster, kubetest.Pod{Namespace: "shop", Name: "stays", Node: "node1", IPs: []netip.Addr{addr}}.Object())
	asks("the pod is known", `client=127.10.0.200 pod=shop/stays workload=""`)
	i.node.Stop(i.t)
	i.cluster.KillAPIServer()
	i.node.launch(i.t, "--config", i.node.config)
	asks("the pod of the snapshot is known", `client=127.10.0.200 pod=shop/stays workload="" pod_stale=true`)
	var top struct {
		Pods []struct {
			Pod     string
			Queries int
		}
	}
	page, err := proctest.OverSocket(i.t.Context(), i.node.settings.socket, http.MethodGet, "/top")
	assert.NoError(i.t, err)
	assert.NoError(i.t, json.Unmarshal([]byte(page), &top))
	if len(top.Pods) != 1 || top.Pods[0].Pod != "stays" || top.Pods[0].Queries == 0 {
		i.t.Errorf("/top: %s, want the queries of one pod", page)
	}
	if page, err = i.node.Page("/metrics"); err != nil || !strings.Contains(page, `nodecache_pod_queries_total{namespace="shop",outcome="upstream"} `) {
		i.t.Errorf("/metrics has no queries of namespace shop: %v", err)
	}
}

// identities compares the pods of queries with the pods that sent them.
type identities struct {
	t       *testing.T
	cluster *kubetest.Cluster
	node    *node

	mu    sync.Mutex // guards the following fields
	seen  map[string]*sightings
	known []time.Duration // from the address in the API to the first query with the pod
	ended []time.Duration // from the end in the API to the first query without
	lives int
	walks int // replies with a name under the pod's own suffix
}

// sightings are the queries of one pod in the log.
type sightings struct {
	right, unknown, wrong int
	firstKnown            time.Time // of the first query with the pod
	lastKnown             time.Time // of the last one
	lastUnknown           time.Time
}

// life starts a pod, and ends it once queries from its address have no pod any more.
func (i *identities) life(address, round int) {
	name := fmt.Sprintf("p-%d-%d", address, round)
	addr := netip.AddrFrom4([4]byte{127, 10, 0, byte(address + 1)})
	api := i.cluster.Client().CoreV1().Pods("shop")
	pod := kubetest.Pod{Namespace: "shop", Name: name, Node: "node1", IPs: []netip.Addr{addr}}.Object()
	pod.Spec.DNSPolicy = corev1.DNSNone
	pod.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"127.0.0.1"}, Searches: []string{firstSuffix, name + "." + ownSuffix}}
	ends := round % 3
	if ends == 1 {
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	i.mu.Lock()
	i.seen[name] = &sightings{}
	i.mu.Unlock()
	if _, err := api.Create(i.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		i.t.Error(err)
		return
	}
	ctx, stop := context.WithCancel(i.t.Context())
	defer stop()
	var client sync.WaitGroup
	client.Go(func() { i.ask(ctx, addr, name) })
	defer client.Wait()
	defer stop()
	time.Sleep(50 * time.Millisecond) // the kubelet reports the address after the start
	pod, err := api.UpdateStatus(i.t.Context(), pod, metav1.UpdateOptions{})
	if err != nil {
		i.t.Error(err)
		return
	}
	reported := time.Now()
	proctest.Eventually(i.t, limit, name+" is known", func() bool { return !i.of(name).firstKnown.IsZero() })
	time.Sleep(time.Duration(300+100*ends) * time.Millisecond)
	now := int64(0)
	gone := metav1.DeleteOptions{GracePeriodSeconds: &now}
	switch ends {
	case 0: // deleted with a grace period
		grace := int64(30)
		err = api.Delete(i.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
	case 1: // it ends by itself
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		_, err = api.UpdateStatus(i.t.Context(), pod, metav1.UpdateOptions{})
	default: // deleted by force, before the kubelet ends it
		err = api.Delete(i.t.Context(), name, gone)
	}
	if err != nil {
		i.t.Error(err)
		return
	}
	ended := time.Now()
	proctest.Eventually(i.t, limit, name+" is unknown", func() bool { return i.of(name).lastUnknown.After(ended) })
	i.mu.Lock()
	i.lives++
	i.known = append(i.known, max(0, i.seen[name].firstKnown.Sub(reported)))
	i.ended = append(i.ended, max(0, i.seen[name].lastKnown.Sub(ended)))
	i.mu.Unlock()
	if ends < 2 {
		time.AfterFunc(300*time.Millisecond, func() { _ = api.Delete(context.WithoutCancel(i.t.Context()), name, gone) })
	}
}

// ask sends queries from an address until ctx ends.
func (i *identities) ask(ctx context.Context, addr netip.Addr, name string) {
	client := dns.Client{Timeout: time.Second, Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: addr.AsSlice()}}}
	q, search := new(dns.Msg).SetQuestion(name+".test.", dns.TypeA), new(dns.Msg).SetQuestion("x."+firstSuffix, dns.TypeA)
	for ctx.Err() == nil {
		_, _, _ = client.Exchange(q, i.node.settings.addr.String()) // the log has what the agent made of it
		if m, _, err := client.Exchange(search, i.node.settings.addr.String()); err == nil {
			i.noteWalk(name, m)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// noteWalk counts a reply with a name of the search path.
func (i *identities) noteWalk(pod string, m *dns.Msg) {
	if len(m.Answer) == 0 {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.walks++
	if alias, ok := m.Answer[0].(*dns.CNAME); !ok || alias.Target != "x."+pod+"."+ownSuffix {
		i.t.Errorf("the search path of %s led to %s", pod, m.Answer[0])
	}
}

// of returns the queries of a pod in the log.
func (i *identities) of(name string) sightings {
	i.mu.Lock()
	defer i.mu.Unlock()
	return *i.seen[name]
}

// readLog reads the query log until ctx ends.
func (i *identities) readLog(ctx context.Context) {
	for at := 0; ; {
		text := i.node.Stderr.From(at)
		text = text[:strings.LastIndexByte(text, '\n')+1]
		at += len(text)
		for line := range strings.Lines(text) {
			i.note(line)
		}
		if ctx.Err() != nil && text == "" {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// note counts a line of the query log.
func (i *identities) note(line string) {
	_, name, found := strings.Cut(line, " msg=query name=")
	if !found {
		return
	}
	name, rest, _ := strings.Cut(name, ".")
	_, pod, _ := strings.Cut(rest, " pod=")
	pod, _, _ = strings.Cut(pod, " ")
	at, err := time.Parse("time=2006-01-02T15:04:05.000Z07:00", strings.Fields(line)[0])
	assert.NoError(i.t, err)
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.seen[name]
	if s == nil { // with the first suffix
		return
	}
	switch pod {
	case "":
		s.unknown++
		s.lastUnknown = at
	case "shop/" + name:
		s.right++
		s.lastKnown = at
		if s.firstKnown.IsZero() {
			s.firstKnown = at
		}
	default:
		s.wrong++
		i.t.Errorf("a query of %s: %s", name, line)
	}
}

// report states the figures.
func (i *identities) report(until time.Time) {
	i.t.Helper()
	var sum sightings
	for _, s := range i.seen {
		sum.right, sum.unknown, sum.wrong = sum.right+s.right, sum.unknown+s.unknown, sum.wrong+s.wrong
	}
	late := 0
	for _, d := range i.known {
		if d > time.Second {
			late++
		}
	}
	if i.walks == 0 {
		i.t.Error("no search path was walked")
	}
	if most := proctest.OrdinaryOrSoak(i.lives/2, i.lives/1000); i.lives == 0 || late > most { // other tests have the processors
		i.t.Errorf("%d of %d pods are known later than 1 s after their address is in the API, want at most %d", late, i.lives, most)
	}
	proctest.Figure(i.t, "%d pods on 5 addresses until %s: queries with the right pod %d, without a pod %d, with a wrong pod %d; %d walked, 0 wrong; "+
		"known %s after the address is in the API, at most; without a pod %s after the end is, at most",
		i.lives, until.Format(time.TimeOnly), sum.right, sum.unknown, sum.wrong, i.walks, slices.Max(i.known), slices.Max(i.ended))
}
