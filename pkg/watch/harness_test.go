// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/watch/watchtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// settleTime is enough for a change to arrive without faults, and far less than any pause.
const settleTime = 100 * time.Millisecond

// A harness is a fake API server, and a watch that fills a store from it, in virtual time.
type harness struct {
	t      *testing.T
	server *watchtest.Server
	store  *zone.Store
	zone   *zone.Zone
	watch  *watch.Watch
	config watch.Config
	log    proctest.Output
}

// withHarness runs body with a server that has the namespaces default and shop, before any watch starts.
func withHarness(t *testing.T, body func(w *harness)) {
	t.Helper()
	t.Parallel()
	kubeconfig := watchtest.Kubeconfig(t)
	synctest.Test(t, func(t *testing.T) {
		w := &harness{t: t, server: watchtest.New(time.Now), store: zone.NewStore()}
		w.server.Start(t)
		w.server.Put(namespaceObject("default"))
		w.server.Put(namespaceObject("shop"))
		w.config = watch.Config{
			Kubeconfig: kubeconfig, Store: w.store, Endpoints: watch.EndpointsAll,
			Log: slog.New(slog.NewTextHandler(&w.log, nil)), Now: time.Now,
		}
		w.config.SetDial(w.server.Dial)
		body(w)
	})
}

// start creates the watch from the config and runs it until the test ends.
func (h *harness) start() {
	h.t.Helper()
	var err error
	if h.watch, err = watch.New(h.config); err != nil {
		h.t.Fatal(err)
	}
	if h.config.Store != nil {
		h.zone, err = zone.New(zone.Config{
			Store: h.store, Domain: "cluster.local.", TTL: 5 * time.Second, AllSlices: h.config.Endpoints == watch.EndpointsAll,
			StaleAfter: h.config.StaleAfter, KnownNamespaces: h.config.NamespaceSelector != "",
			Pods: map[bool]zone.PodMode{true: zone.PodsVerified}[h.config.Pods],
		})
		assert.NoError(h.t, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- h.watch.Run(ctx) }()
	h.t.Cleanup(func() {
		cancel()
		began := time.Now()
		if err := <-ran; err != nil {
			h.t.Errorf("Run: %v", err)
		}
		if took := time.Since(began); took > 0 {
			h.t.Errorf("Run ended %s after its context", took)
		}
	})
	time.Sleep(settleTime)
	synctest.Wait()
}

// askZone returns the sorted data of the answer to a question such as "web.shop.svc AAAA" below the cluster domain, or why
// there is none: NODATA, an rcode or a verdict. A name with a trailing dot is absolute, and the type is A without one.
func askZone(t *testing.T, z *zone.Zone, question string) string {
	t.Helper()
	name, kind, _ := strings.Cut(question, " ")
	if !strings.HasSuffix(name, ".") {
		name += ".cluster.local."
	}
	m := new(dns.Msg).SetQuestion(name, dns.StringToType[cmp.Or(kind, "A")])
	packet, err := m.Pack()
	assert.NoError(t, err)
	var q wire.Query
	if fault := q.Parse(packet); fault != wire.RcodeSuccess {
		t.Fatalf("%s: fault %d in the query", question, fault)
	}
	answer, result := zone.Zones{z}.Answer(&q, zone.Client{MaxSize: wire.MaxMessage}, time.Now(), nil)
	if result.Verdict != zone.Answered && result.Verdict != zone.Alias {
		return map[zone.Verdict]string{zone.NotInZone: "not in zone", zone.UseFallback: "fallback", zone.NotReady: "not ready"}[result.Verdict]
	}
	assert.NoError(t, m.Unpack(answer))
	var data []string
	for _, record := range m.Answer {
		data = append(data, strings.TrimPrefix(record.String(), record.Header().String()))
	}
	slices.Sort(data)
	text := strings.Join(data, " ")
	switch {
	case m.Rcode != dns.RcodeSuccess:
		text = dns.RcodeToString[m.Rcode]
	case text == "":
		text = "NODATA"
	}
	if result.EDE == wire.EDEStaleAnswer || result.EDE == wire.EDEStaleNXDomain {
		text += " stale"
	}
	return text
}

// want checks the answer for a name.
func (h *harness) want(name, want string) {
	h.t.Helper()
	if got := askZone(h.t, h.zone, name); got != want {
		h.t.Errorf("%s: got %q, want %q\n%s", name, got, want, h.log.String())
	}
}

// wantSoon waits for an answer until limit, and returns how long it took.
func (h *harness) wantSoon(name, want string, limit time.Duration) time.Duration {
	h.t.Helper()
	began := time.Now()
	for {
		got := askZone(h.t, h.zone, name)
		if got == want {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			h.t.Fatalf("%s: still %q after %s, want %q\n%s\n%+v", name, got, limit, want, h.log.String(), h.server.Requests(""))
		}
		time.Sleep(settleTime)
		synctest.Wait()
	}
}

// pass advances the time.
func (h *harness) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// kind returns the counts of a kind.
func (h *harness) kind(kind zone.Kind) watch.KindStats {
	h.t.Helper()
	for _, k := range h.watch.Stats().Kinds {
		if k.Kind == kind {
			return k
		}
	}
	h.t.Fatalf("no counts of kind %d", kind)
	return watch.KindStats{}
}

// wantCalm checks that no resource was requested more often than once a second, after the burst.
func (h *harness) wantCalm(burst int) {
	h.t.Helper()
	for _, resource := range []string{"services", "endpointslices", "namespaces", "pods"} {
		requests := h.server.Requests(resource)
		for i := range requests {
			for j := i + burst; j < len(requests); j++ {
				span := requests[j].At.Sub(requests[i].At) + time.Millisecond // the limiter rounds
				if most := burst + int(span/time.Second); j-i+1 > most {
					h.t.Fatalf("%s: %d requests within %s\n%+v", resource, j-i+1, span, requests[i:j+1])
				}
			}
		}
	}
}

// isReady reports whether Ready is closed.
func (h *harness) isReady() bool {
	select {
	case <-h.watch.Ready():
		return true
	default:
		return false
	}
}

func namespaceObject(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// serviceObject makes a ClusterIP service; addr "None" makes it headless.
func serviceObject(name, addr string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: addr, ClusterIPs: []string{addr},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

// sliceObject makes a slice of ready endpoints.
func sliceObject(name, service string, headless bool, addrs ...string) *discoveryv1.EndpointSlice {
	es := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if headless {
		es.Labels[corev1.IsHeadlessService] = ""
	}
	for _, addr := range addrs {
		netip.MustParseAddr(addr)
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr}})
	}
	return es
}
