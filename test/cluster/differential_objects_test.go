// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodecache/node-cache/internal/kubetest"
)

// longLabel is a label of the most bytes a label can have.
var longLabel = strings.Repeat("long-", 12) + "end"

// picked is the label that the runs with selectors choose by.
var picked = map[string]string{"picked": "yes"}

// clusterObjects are what the differential test's cluster holds: every kind of service and endpoint that the API
// server accepts.
func clusterObjects() []runtime.Object {
	return slices.Concat(
		clusterNamespaces(), clusterServices(), oddServices(), headlessServices(), aliases(), aliasChains(),
		pods(), manualSlices(), oddSlices(), largeSets(),
	)
}

// clusterNamespaces are the namespaces and nodes. The names of some read like something else.
func clusterNamespaces() []runtime.Object {
	objects := []runtime.Object{kubetest.Node("node-a", "zone-a"), kubetest.Node("node-b", "zone-b")}
	for _, name := range []string{"shop", "other", "empty", "0-9", longLabel, "svc", "pod", "dns", "cluster", "any"} {
		objects = append(objects, kubetest.Namespace(name))
	}
	for _, name := range []string{"chosen", "chosen-too"} {
		n := kubetest.Namespace(name)
		n.Labels = picked
		objects = append(objects, n)
	}
	return objects
}

// clusterServices have addresses of their own. Some have endpoints, which the controller makes of the pods.
func clusterServices() []runtime.Object {
	return []runtime.Object{
		newService("shop", "web", at("10.96.1.1"), ports("http:80"), selects("web")),
		newService("shop", "web6", at("fd00:10:96::101"), ports("http:80"), selects("web")),
		newService("shop", "both", at("10.96.1.2", "fd00:10:96::102"), ports("http:80", "https:443"), selects("web")),
		newService("shop", "both64", at("fd00:10:96::103", "10.96.1.3"), ports("http:80", "http3:443/UDP"), selects("web")),
		newService("shop", "plain", at("10.96.1.4"), ports(":80"), selects("web")),
		newService("shop", "resolver", at("10.96.1.5", "fd00:10:96::105"),
			ports("dns:53/UDP", "dns-tcp:53/TCP", "metrics:9153/TCP"), selects("web")),
		newService("shop", "signal", at("10.96.1.6"), ports("m3ua:2905/SCTP", "sip:5060/UDP", "sips:5061/TCP"), selects("web")),
		newService("shop", "one-number", at("10.96.1.7"), ports("a:7/TCP", "b:7/UDP", "c:7/SCTP"), selects("web")),
		newService("shop", "many-ports", at("10.96.1.8", "fd00:10:96::108"), ports(manyPorts(130)...), selects("web")),
		newService("shop", "slow", at("10.96.1.9"), ports("http:80"), selects("not-ready")),
		newService("shop", "slow-published", at("10.96.1.10"), ports("http:80"), selects("not-ready"), markedUnready),
		newService("shop", "podless", at("10.96.1.11"), ports("http:80"), selects("podless")),
		newService("shop", "by-hand", at("10.96.1.12"), ports("http:80")),
		newService("shop", "no-slices", at("10.96.1.13"), ports("http:80"), annotated("example.com/ttl", "30s")),
		newService("shop", "patient", at("10.96.1.14"), ports("http:80"), selects("web"), annotated("node-cache.io/ttl", "30s")),
		newService("shop", "wrong", at("10.96.1.15"), ports("http:80"), annotated("node-cache.io/ttl", "forever")),
		newService("shop", "too-long", at("10.96.1.16"), ports("http:80"), annotated("node-cache.io/ttl", "2h")),
		newService("other", "web", at("10.96.2.1"), ports("http:80"), selects("web")),
		newService("other", "picked", at("10.96.2.2"), ports("http:80"), selects("web"), labelled(picked)),
		newService("other", "stuck", at("10.96.2.3"), ports("http:80"), finalized),
		newService("chosen", "web", at("10.96.3.1"), ports("http:80"), selects("web"), labelled(picked)),
		newService("chosen", "plain", at("10.96.3.2"), ports("http:80"), selects("web")),
	}
}

// oddServices have types or names out of the ordinary.
func oddServices() []runtime.Object {
	node := newService("shop", "node", at("10.96.4.1"), ports("http:80"), selects("web"))
	node.Spec.Type = corev1.ServiceTypeNodePort
	balanced := newService("shop", "balanced", at("10.96.4.2"), ports("http:80"), selects("web"))
	balanced.Spec.Type, balanced.Spec.ExternalIPs = corev1.ServiceTypeLoadBalancer, []string{"198.51.100.7"}
	return []runtime.Object{
		node, balanced,
		newService("0-9", "0-9", at("10.96.4.3"), ports("0a:80"), selects("web")),
		newService("0-9", "10-0-0-1", at("10.96.4.4"), ports("http:80"), selects("web")),
		newService(longLabel, longLabel, at("10.96.4.5", "fd00:10:96::405"), ports(longLabel+":80"), selects("web")),
		newService("svc", "svc", at("10.96.4.6"), ports("svc:80"), selects("web")),
		newService("pod", "pod", at("10.96.4.7"), ports("tcp:80", "udp:80/UDP"), selects("web")),
		newService("dns", "ns", at("10.96.4.8"), ports("http:80"), selects("web")),
		newService("cluster", "local", at("10.96.4.9"), ports("http:80"), selects("web")),
		newService("any", "any", at("10.96.4.10"), ports("any:80"), selects("web")),
		newService("shop", "pin", at("10.96.4.11"), ports("pin:80", "zone:81"), selects("web")),
	}
}

// headlessServices have endpoints in place of addresses.
func headlessServices() []runtime.Object {
	return []runtime.Object{
		newService("shop", "db", headless(corev1.IPv4Protocol), ports("sql:5432", "admin:8080"), selects("db")),
		newService("shop", "db6", headless(corev1.IPv6Protocol), ports("sql:5432"), selects("db")),
		newService("shop", "db46", headless(corev1.IPv4Protocol, corev1.IPv6Protocol), ports("sql:5432", "ping:7/UDP"), selects("db")),
		newService("shop", "portless", headless(corev1.IPv4Protocol), selects("db")),
		newService("shop", "nameless", headless(corev1.IPv4Protocol), ports(":5432"), selects("db")),
		newService("shop", "bare", headless(corev1.IPv4Protocol, corev1.IPv6Protocol), ports("sql:5432"), selects("web")),
		newService("shop", "half", headless(corev1.IPv4Protocol), ports("sql:5432"), selects("half")),
		newService("shop", "half-published", headless(corev1.IPv4Protocol), ports("sql:5432"), selects("half"), markedUnready),
		newService("shop", "unready", headless(corev1.IPv4Protocol), ports("sql:5432"), selects("not-ready")),
		newService("shop", "unready-published", headless(corev1.IPv4Protocol), ports("sql:5432"), selects("not-ready"), markedUnready),
		newService("shop", "vacant", headless(corev1.IPv4Protocol), ports("sql:5432"), selects("podless")),
		newService("shop", "hand", headless(corev1.IPv4Protocol), ports("sql:5432")),
		newService("shop", "published", headless(corev1.IPv4Protocol), ports("sql:5432"), markedUnready),
		newService("shop", "hand6", headless(corev1.IPv6Protocol), ports("sql:5432")),
		newService("shop", "mixed", headless(corev1.IPv4Protocol, corev1.IPv6Protocol), ports("sql:5432")),
		newService("shop", "zones", headless(corev1.IPv4Protocol), ports("sql:5432")),
		newService("shop", "odd", headless(corev1.IPv4Protocol), ports("sql:5432")),
		newService("shop", "hosts", headless(corev1.IPv4Protocol), ports("sql:5432")),
		newService("shop", "spread", headless(corev1.IPv4Protocol), ports("sql:5432")),
		newService("shop", "large", headless(corev1.IPv4Protocol), ports("sql:5432", "admin:8080")),
		newService("shop", "large6", headless(corev1.IPv6Protocol), ports("sql:5432")),
		newService("shop", "lasting", headless(corev1.IPv4Protocol), ports("sql:5432"), selects("db"), annotated("node-cache.io/ttl", "0s")),
		newService(longLabel, "long", headless(corev1.IPv4Protocol), ports(longLabel+":5432")),
		newService("chosen", "db", headless(corev1.IPv4Protocol), ports("sql:5432"), selects("db"), labelled(picked)),
		newService("other", "db", headless(corev1.IPv4Protocol), ports("sql:5432"), selects("db")),
	}
}

// aliases are names for other names, some of which say what they are for.
func aliases() []runtime.Object {
	targets := map[string]string{
		"out": "www.example.test", "out-dot": "www.example.test.", "out-alias": "alias.example.test",
		"out-missing": "missing.example.test", "out-empty": "empty.example.test", "out-failing": "broken.example.test",
		"out-longest": strings.Repeat("a23456789.", 24) + "example.com", // 251 bytes
		"out-far":     "chain.example.test", "out-large": "large.example.test",
		"out-back": "back.example.test", "out-root": "test", "out-reverse": "1.1.96.10.in-addr.arpa",
		"ip": "192.0.2.7", "ip-like": "192.0.2.700", "number": "1", "short": "web",
		"to-web": "web.shop.svc.cluster.local", "to-web-dot": "web.shop.svc.cluster.local.",
		"to-web6": "web6.shop.svc.cluster.local", "to-both": "both.shop.svc.cluster.local",
		"to-db": "db.shop.svc.cluster.local", "to-member": "db-0.db.shop.svc.cluster.local",
		"to-vacant": "vacant.shop.svc.cluster.local", "to-nothing": "nothing.shop.svc.cluster.local",
		"to-nowhere": "web.nowhere.svc.cluster.local", "to-apex": "cluster.local", "to-svc": "svc.cluster.local",
		"to-version": "dns-version.cluster.local", "to-ns": "ns.dns.cluster.local",
		"to-space": "shop.svc.cluster.local", "to-pod": "10-1-0-1.shop.pod.cluster.local",
		"to-outside": "elsewhere.cluster.local", "to-prefix": "xcluster.local", "to-other": "web.other.svc.cluster.local",
		"to-long": longLabel + "." + longLabel + ".svc.cluster.local",
	}
	var objects []runtime.Object
	for _, name := range slices.Sorted(maps.Keys(targets)) {
		objects = append(objects, newService("shop", name, aliasOf(targets[name])))
	}
	return append(objects,
		newService("shop", "out-ports", aliasOf("www.example.test"), ports("http:80")),
		newService("shop", "to-ports", aliasOf("web.shop.svc.cluster.local"), ports("http:80")),
		newService("shop", "out-patient", aliasOf("www.example.test"), annotated("node-cache.io/ttl", "1m")),
	)
}

// aliasChains are aliases of aliases: one that ends at a service, one that ends outside, and some that never end.
func aliasChains() []runtime.Object {
	const length = 13
	var objects []runtime.Object
	for i := range length {
		inner, outer := fmt.Sprintf("in-%d.shop.svc.cluster.local", i-1), fmt.Sprintf("away-%d.shop.svc.cluster.local", i-1)
		if i == 0 {
			inner, outer = "web.shop.svc.cluster.local", "www.example.test"
		}
		objects = append(objects,
			newService("shop", fmt.Sprintf("in-%d", i), aliasOf(inner)),
			newService("shop", fmt.Sprintf("away-%d", i), aliasOf(outer)))
	}
	for from, to := range map[string]string{"self": "self", "ring-a": "ring-b", "ring-b": "ring-c", "ring-c": "ring-a", "to-ring": "ring-a"} {
		objects = append(objects, newService("shop", from, aliasOf(to+".shop.svc.cluster.local")))
	}
	return objects
}

// pods are what the selectors choose. They have no kubelet, so they stay as they are.
func pods() []runtime.Object {
	set := []kubetest.Pod{
		{Name: "web-1", Labels: app("web"), IPs: addrs("10.1.1.1", "fd00:1::1:1")},
		{Name: "web-2", Labels: app("web"), IPs: addrs("10.1.1.2", "fd00:1::")}, // its name ends in a zero that is not written
		{Name: "web-3", Labels: app("web"), IPs: addrs("10.1.1.3", "fd00:1:0:0:1::3")},
		{Name: "web." + longLabel, Labels: app("web"), IPs: addrs("10.1.1.4")},
		{Name: "web.dotted", Labels: app("web"), IPs: addrs("10.1.1.5")},
		{Name: longLabel, Labels: app("web"), IPs: addrs("10.1.1.6")},
		{Name: "half-0", Labels: app("half"), IPs: addrs("10.1.2.1"), Hostname: "half-0", Subdomain: "half"},
		{Name: "half-1", Labels: app("half"), IPs: addrs("10.1.2.2"), NotReady: true},
		{Name: "slow-0", Labels: app("not-ready"), IPs: addrs("10.1.3.1"), Hostname: "slow-0", Subdomain: "unready-published", NotReady: true},
		{Name: "waiting", Labels: app("web")},
		{Name: "loner", IPs: addrs("10.1.4.1", "fd00:1::4:1")},
	}
	for i := range 3 {
		name := fmt.Sprintf("db-%d", i)
		set = append(set, kubetest.Pod{
			Name: name, Labels: app("db"), IPs: addrs(fmt.Sprintf("10.1.0.%d", 1+i), fmt.Sprintf("fd00:1::%d", 1+i)),
			Hostname: name, Subdomain: "db",
		})
	}
	var objects []runtime.Object
	for i, p := range set {
		p.Namespace, p.Node = "shop", []string{"node-a", "node-b"}[i%2]
		objects = append(objects, p.Object())
	}
	done := kubetest.Pod{Namespace: "shop", Name: "done", Labels: app("web"), Node: "node-a", IPs: addrs("10.1.5.1")}.Object()
	done.Status.Phase = corev1.PodSucceeded
	return append(objects, done,
		kubetest.Pod{Namespace: "chosen", Name: "db-9", Labels: app("db"), Node: "node-a", IPs: addrs("10.1.6.1")}.Object(),
		kubetest.Pod{Namespace: "chosen", Name: "web-9", Labels: app("web"), Node: "node-b", IPs: addrs("10.1.6.2")}.Object(),
	)
}

// A serviceOption changes a service in the making.
type serviceOption func(*corev1.Service)

func newService(namespace, name string, options ...serviceOption) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	for _, o := range options {
		o(s)
	}
	return s
}

// at gives the service addresses, of one family or of both.
func at(ips ...string) serviceOption {
	return func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = ips[0], ips
		for _, ip := range ips {
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, familyOf(ip))
		}
		s.Spec.IPFamilyPolicy = policy(len(ips))
	}
}

func familyOf(ip string) corev1.IPFamily {
	if strings.Contains(ip, ":") {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// headless takes the service's addresses away. The families are those of the endpoints.
func headless(families ...corev1.IPFamily) serviceOption {
	return func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = corev1.ClusterIPNone, families, policy(len(families))
	}
}

func policy(families int) *corev1.IPFamilyPolicy {
	p := corev1.IPFamilyPolicySingleStack
	if families == 2 {
		p = corev1.IPFamilyPolicyRequireDualStack
	}
	return &p
}

// ports gives the service ports, written name:number or name:number/PROTOCOL.
func ports(list ...string) serviceOption {
	return func(s *corev1.Service) {
		for _, text := range list {
			name, rest, _ := strings.Cut(text, ":")
			digits, protocol, found := strings.Cut(rest, "/")
			if !found {
				protocol = "TCP"
			}
			number, err := strconv.Atoi(digits)
			if err != nil {
				panic(err) // a slip in this file
			}
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
				Name: name, Port: int32(number), Protocol: corev1.Protocol(protocol), TargetPort: intstr.FromInt32(int32(number)),
			})
		}
	}
}

func manyPorts(n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("port-%d:%d", i, 1000+i))
	}
	return list
}

func selects(name string) serviceOption {
	return func(s *corev1.Service) { s.Spec.Selector = app(name) }
}

func aliasOf(target string) serviceOption {
	return func(s *corev1.Service) { s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, target }
}

func markedUnready(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }

// finalized keeps the service when it is deleted.
func finalized(s *corev1.Service) { s.Finalizers = []string{"node-cache.io/test"} }

func annotated(key, value string) serviceOption {
	return func(s *corev1.Service) { s.Annotations = map[string]string{key: value} }
}

func labelled(labels map[string]string) serviceOption {
	return func(s *corev1.Service) { s.Labels = labels }
}

func app(name string) map[string]string { return map[string]string{"app": name} }

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}
