// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

const shopDomain = ".shop.svc.cluster.local."

// addrOf is the address of a state, in one of 100 networks.
func addrOf(network, state int) string {
	return fmt.Sprintf("10.%d.%d.%d", 100+network, state>>8, state&255)
}

func isAddr(network int) func(int, *dns.Msg) bool {
	return func(state int, m *dns.Msg) bool {
		if len(m.Answer) != 1 {
			return false
		}
		a, ok := m.Answer[0].(*dns.A)
		return ok && a.A.String() == addrOf(network, state)
	}
}

// isThere is of a name that exists in states with odd numbers.
func isThere(state int, m *dns.Msg) bool {
	return len(m.Answer) == state%2
}

func question(name string, qtype uint16) dns.Question {
	return dns.Question{Name: name, Qtype: qtype, Qclass: dns.ClassINET}
}

func clusterService(name, addr string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: addr, ClusterIPs: []string{addr},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

// serviceSubjects are names of Services that change in every way that a zone knows.
func (n *truth) serviceSubjects() []*subject {
	var list []*subject
	for i := range 8 {
		name := fmt.Sprintf("web-%d", i)
		list = append(list, &subject{
			question: question(name+shopDomain, dns.TypeA), edns: i%2 == 0, is: isAddr(i),
			change: func(state int) { n.api.Put(clusterService(name, addrOf(i, state))) },
		})
	}
	n.api.Put(clusterService("headless", corev1.ClusterIPNone))
	for i, q := range []dns.Question{
		question("comes-and-goes-0"+shopDomain, dns.TypeA),
		question("_http._tcp.comes-and-goes-1"+shopDomain, dns.TypeSRV), // its denial has no owner
	} {
		list = append(list, &subject{question: q, is: isThere, change: func(state int) {
			if s := clusterService(fmt.Sprintf("comes-and-goes-%d", i), addrOf(50, i)); state%2 == 1 {
				n.api.Put(s)
			} else {
				n.api.Delete(s)
			}
		}})
	}
	list = append(list,
		&subject{
			question: question("1.0.151.10.in-addr.arpa.", dns.TypePTR), is: isThere,
			change: func(state int) { n.api.Put(clusterService("moves", addrOf(51, 2-state%2))) },
		},
		&subject{
			question: question("headless"+shopDomain, dns.TypeA), is: isAddr(52),
			change: func(state int) { n.api.Put(headlessSlice("headless", addrOf(52, state))) },
		},
		&subject{
			question: question("_http._tcp.srv"+shopDomain, dns.TypeSRV),
			is: func(state int, m *dns.Msg) bool {
				if len(m.Answer) != 1 {
					return false
				}
				srv, ok := m.Answer[0].(*dns.SRV)
				return ok && int(srv.Port) == state
			},
			change: func(state int) {
				s := clusterService("srv", addrOf(53, 1))
				s.Spec.Ports[0].Port = int32(state)
				n.api.Put(s)
			},
		},
	)
	return list
}

func headlessSlice(service, addr string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service, corev1.IsHeadlessService: ""},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{addr}}},
	}
}

// An authority answers for one zone with the address of the state of each name.
type authority struct {
	network int
	ttl     uint32
	states  sync.Map // *atomic.Int64 by name
	asked   atomic.Int64
}

func (a *authority) state(name string) *atomic.Int64 {
	state, _ := a.states.LoadOrStore(strings.ToLower(name), new(atomic.Int64))
	return state.(*atomic.Int64)
}

// ServeDNS implements [dns.Handler].
func (a *authority) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	a.asked.Add(1)
	m := new(dns.Msg).SetReply(q)
	name := q.Question[0].Name
	state := a.state(name).Load()
	m.Answer = []dns.RR{&dns.A{
		Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: a.ttl},
		A:   net.ParseIP(addrOf(a.network, int(state))),
	}}
	_ = w.WriteMsg(m) // the agent asks again
}

// serve has the authority answer at a port of the upstream host.
func (n *truth) serve(t *testing.T, a *authority, port uint16) {
	t.Helper()
	addr := netip.AddrPortFrom(n.Upstream.IPv4, port)
	assert.NoError(t, n.Upstream.Do(func() error {
		s, err := proctest.ServeDNS(&net.ListenConfig{}, addr, a)
		if err == nil {
			t.Cleanup(s.Close)
		}
		return err
	}))
}

// changes is how often Services change.
func changes() int { return proctest.OrdinaryOrSoak(52, 10_000) }

// TestKernelTruth changes what the agent answers while all pods ask for it at full speed. The kernel answers most of that. Once the
// process has answered with a change, no pod gets an older answer.
func TestKernelTruth(t *testing.T) {
	n := startTruth(t, "cluster: {resolver: local, kubeconfig: %s, staleAfter: 5s}\nforward: [{zone: ., to: [10.201.0.2:5301]}]\n")
	n.api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	n.dialProcess(t)
	services := n.serviceSubjects()
	short := &authority{network: 60, ttl: 1}
	n.serve(t, short, 5301)
	expiring := &subject{question: question("expires.test.", dns.TypeA), is: isAddr(60), change: func(state int) {
		short.state("expires.test.").Store(int64(state))
	}}
	for _, s := range append(services, expiring) {
		n.next(t, s)
	}
	n.ask(t, append(services, expiring))
	began := time.Now()
	for i := range changes() {
		n.next(t, services[i%len(services)])
		if i%(changes()/proctest.OrdinaryOrSoak(2, 10)) == 0 { // each takes seconds
			n.next(t, expiring)
			n.api.Forget()
		}
	}
	t.Logf("%d changes in %s", changes(), ms(time.Since(began)))
	n.stop(t)
}

// TestKernelTruthOfStaleZone has the API server fall silent: then a denial says that it is stale.
func TestKernelTruthOfStaleZone(t *testing.T) {
	n := startTruth(t, "cluster: {resolver: local, kubeconfig: %s, staleAfter: 5s}\nforward: [{zone: ., to: [192.0.2.1]}]\n")
	n.api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	n.dialProcess(t)
	denied := &subject{
		question: question("missing"+shopDomain, dns.TypeA), edns: true, change: func(int) {},
		is: func(state int, m *dns.Msg) bool { return len(m.IsEdns0().Option) == state-1 },
	}
	n.next(t, denied)
	n.ask(t, []*subject{denied})
	time.Sleep(time.Second) // of answers in the kernel
	n.api.Hang()
	n.next(t, denied)
	time.Sleep(time.Second)
	n.stop(t)
}

// TestKernelTruthOfCache changes what an upstream answers, and drops the cached answers: by a flush, and by a reload that gives the name
// another upstream.
func TestKernelTruthOfCache(t *testing.T) {
	n := startTruth(t, "forward: [{zone: ., to: [10.201.0.2:5301]}]\n")
	flushedAt, routedAt := &authority{network: 61, ttl: 3600}, [2]*authority{{network: 62, ttl: 3600}, {network: 62, ttl: 3600}}
	n.serve(t, flushedAt, 5301)
	ports := [2]uint16{5302, 5303}
	for i, a := range routedAt {
		n.serve(t, a, ports[i])
	}
	n.dialProcess(t)
	flushed := &subject{question: question("flushed.test.", dns.TypeA), is: isAddr(61), change: func(state int) {
		flushedAt.state("flushed.test.").Store(int64(state))
		n.admin(t, "POST", "/cache/flush?name=flushed.test.")
	}}
	zone := &subject{question: question("a.zone.test.", dns.TypeA), is: isAddr(61), change: func(state int) {
		flushedAt.state("a.zone.test.").Store(int64(state))
		n.admin(t, "POST", "/cache/flush?zone=zone.test.")
	}}
	routed := &subject{question: question("a.routed.test.", dns.TypeA), is: isAddr(62), change: func(state int) {
		routedAt[state%2].state("a.routed.test.").Store(int64(state))
		n.writeConfig(t, fmt.Sprintf("kernel: {hits: on}\nforward: [{zone: ., to: [10.201.0.2:5301]}, {zone: routed.test, to: [10.201.0.2:%d]}]\n",
			ports[state%2]))
		n.agent.Signal(syscall.SIGHUP)
		proctest.Eventually(t, time.Minute, "the agent has the configuration", func() bool { // an earlier query may be answered by the old route
			return strings.Contains(n.agent.Stderr.String(), fmt.Sprintf(`"generation":%d}`, state+1))
		})
	}}
	subjects := []*subject{flushed, zone, routed}
	for _, s := range subjects {
		n.next(t, s)
	}
	n.ask(t, subjects)
	for range proctest.OrdinaryOrSoak(25, 500) {
		for _, s := range subjects {
			n.next(t, s)
			time.Sleep(10 * time.Millisecond) // of answers in the kernel
		}
	}
	n.stop(t)
}

// TestKernelTruthOfCentral has a central resolver answer for Services, whose changes drop the cached answers.
func TestKernelTruthOfCentral(t *testing.T) {
	n := startTruth(t, "cluster: {resolver: central, central: {addresses: [\"10.201.0.2:5301\"]}, invalidate: true, kubeconfig: %s}\nforward: [{zone: ., to: [192.0.2.1]}]\n")
	n.api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	central := &authority{network: 63, ttl: 3600}
	n.serve(t, central, 5301)
	n.dialProcess(t)
	var subjects []*subject
	for i := range 4 {
		name := fmt.Sprintf("web-%d", i)
		subjects = append(subjects, &subject{question: question(name+shopDomain, dns.TypeA), is: isAddr(63), change: func(state int) {
			central.state(name + shopDomain).Store(int64(state))
			n.api.Put(clusterService(name, addrOf(63, state)))
		}})
	}
	for _, s := range subjects {
		n.next(t, s)
	}
	n.ask(t, subjects)
	for range proctest.OrdinaryOrSoak(1, 40) {
		time.Sleep(2 * time.Second) // what was asked soon after a change is not kept
		for _, s := range subjects {
			n.next(t, s)
		}
	}
	time.Sleep(2 * time.Second)
	n.stop(t)
}
