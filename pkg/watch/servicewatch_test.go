// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/watch"
)

// watchService watches the service dns, and returns the reports, one line each.
func (h *harness) watchService() *proctest.Output {
	reports := new(proctest.Output)
	h.config.ServiceWatch = &watch.ServiceWatch{
		Namespace: "shop", Service: "dns",
		Changed: func(ready []watch.Server, service []netip.AddrPort) {
			if reports.String() == "" && h.isReady() {
				h.t.Error("ready before the endpoints were reported")
			}
			_, _ = fmt.Fprintf(reports, "[%s] %v\n", servers(ready), service)
		},
	}
	return reports
}

// servers formats addresses, each with its zone if it is known.
func servers(list []watch.Server) string {
	texts := make([]string, 0, len(list))
	for _, s := range list {
		text := s.Addr.String()
		if s.Zone != "" {
			text += "@" + s.Zone
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

func (h *harness) wantReports(reports *proctest.Output, want ...string) {
	h.t.Helper()
	assert.Same(h.t, "reports", want, strings.Split(strings.TrimSuffix(reports.String(), "\n"), "\n"))
}

// dnsService returns a service with these ports and one for metrics.
func dnsService(addr string, ports ...corev1.ServicePort) *corev1.Service {
	svc := serviceObject("dns", addr)
	svc.Spec.Ports = append(svc.Spec.Ports, ports...)
	return svc
}

// dnsSlice returns a slice of the service with a target port for each port name.
func dnsSlice(name string, ports map[string]int32, addrs ...string) *discoveryv1.EndpointSlice {
	es := sliceObject(name, "dns", false, addrs...)
	for port, number := range ports {
		protocol := corev1.ProtocolTCP
		if port == "dns" {
			protocol = corev1.ProtocolUDP
		}
		es.Ports = append(es.Ports, discoveryv1.EndpointPort{Name: new(port), Port: new(number), Protocol: new(protocol)})
	}
	return es
}

// TestServiceExcluded: only the annotation of the watched service counts, and only the value that Calico takes.
func TestServiceExcluded(t *testing.T) {
	withHarness(t, func(w *harness) {
		reports := w.watchService()
		w.config.ServiceWatch.Excluded = func(is bool) { _, _ = fmt.Fprintf(reports, "%t ", is) }
		put := func(name, value string) {
			svc := dnsService("10.0.0.10", corev1.ServicePort{Name: "dns", Protocol: corev1.ProtocolTCP, Port: 53})
			svc.Name = name
			if value != "" {
				svc.Annotations = map[string]string{"projectcalico.org/natExcludeService": value}
			}
			w.server.Put(svc)
			w.pass(settleTime)
		}
		put("dns", "")
		put("web", "true")
		w.start()
		for _, value := range []string{"yes", "true", ""} {
			put("dns", value)
			put("web", value)
		}
		put("dns", "true")
		w.server.Delete(dnsService(""))
		w.pass(settleTime)
		w.wantReports(reports,
			"false [] [10.0.0.10:53]",
			"true [] [10.0.0.10:53]",
			"false [] [10.0.0.10:53]",
			"true [] [10.0.0.10:53]",
			"false [] []",
		)
	})
}

func TestServiceWatch(t *testing.T) {
	withHarness(t, func(w *harness) {
		reports := w.watchService()
		udp := corev1.ServicePort{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}
		tcp := corev1.ServicePort{Name: "dns-over-tcp", Protocol: corev1.ProtocolTCP, Port: 53}
		ports := map[string]int32{"dns": 5353, "dns-over-tcp": 5354, "http": 8080}
		w.server.Put(dnsService("10.0.0.10", udp, tcp))
		w.server.Put(dnsSlice("dns-1", ports, "10.1.0.2", "10.1.0.1"))
		w.server.Put(sliceObject("web-1", "web", false, "10.1.0.99"))
		w.start()
		w.wantReports(reports, "[10.1.0.1:5354 10.1.0.2:5354] [10.0.0.10:53]")

		es := dnsSlice("dns-1", ports, "10.1.0.2", "10.1.0.1", "10.1.0.3")
		es.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(true), Terminating: new(true)}
		es.Endpoints[1].Conditions.Ready = new(false)
		w.server.Put(es)
		w.pass(settleTime)
		es.Labels["changes"] = "nothing"
		w.server.Put(es)
		w.pass(settleTime)
		w.server.Put(dnsSlice("dns-2", ports, "10.1.0.3", "10.1.0.4"))
		w.pass(settleTime)
		w.server.Delete(es)
		w.pass(settleTime)
		w.server.Delete(dnsService(""))
		w.pass(settleTime)
		w.server.Put(dnsService("10.0.0.11", udp, corev1.ServicePort{Name: "dns-over-tcp", Port: 53}))
		w.pass(settleTime)
		w.wantReports(reports,
			"[10.1.0.1:5354 10.1.0.2:5354] [10.0.0.10:53]",
			"[10.1.0.3:5354] [10.0.0.10:53]",
			"[10.1.0.3:5354 10.1.0.4:5354] [10.0.0.10:53]",
			"[] []",
			"[10.1.0.3:5354 10.1.0.4:5354] [10.0.0.11:53]",
		)
	})
}

// TestServiceWatchEndpoints has all conditions of an endpoint, and ports of all kinds. A terminating endpoint is not reported
// unless no other is left; then it is reported while it serves, instead of the service's own address.
func TestServiceWatchEndpoints(t *testing.T) {
	t.Parallel()
	type is = discoveryv1.EndpointConditions
	yes, no := new(true), new(false)
	port := func(name string, number int32, protocol corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: number, Protocol: protocol}
	}
	for _, tt := range []struct {
		name  string
		ports []corev1.ServicePort // of the service; none: 53/TCP
		ends  []is                 // of 10.1.0.1 and so on
		want  string
	}{
		{name: "no conditions", ends: []is{{}, {}}, want: "[10.1.0.1:2 10.1.0.2:2] [10.0.0.10:53]"},
		{name: "ready or not", ends: []is{{Ready: yes}, {Ready: no}}, want: "[10.1.0.1:2] [10.0.0.10:53]"},
		{name: "ready without serving", ends: []is{{Ready: yes, Serving: no}}, want: "[10.1.0.1:2] [10.0.0.10:53]"},
		{name: "serving, and neither ready nor ending", ends: []is{{Ready: no, Serving: yes, Terminating: no}}, want: "[] [10.0.0.10:53]"},
		{
			name: "one ends", ends: []is{{Ready: no, Serving: yes, Terminating: yes}, {Ready: yes, Serving: yes, Terminating: no}},
			want: "[10.1.0.2:2] [10.0.0.10:53]",
		},
		{
			name: "one ends, and is published all the same", ends: []is{{Ready: yes, Serving: yes, Terminating: yes}, {Ready: yes}},
			want: "[10.1.0.2:2] [10.0.0.10:53]",
		},
		{
			name: "all end", ends: []is{{Ready: no, Serving: yes, Terminating: yes}, {Ready: no, Serving: no, Terminating: yes}},
			want: "[10.1.0.1:2] [10.0.0.10:53]",
		},
		{
			name: "all terminate, and the condition serving is missing", ends: []is{{Ready: no, Terminating: yes}, {Ready: yes, Terminating: yes}},
			want: "[10.1.0.2:2] [10.0.0.10:53]",
		},
		{
			name: "one ends, the other is not ready", ends: []is{{Ready: no, Serving: yes, Terminating: yes}, {Ready: no}},
			want: "[10.1.0.1:2] [10.0.0.10:53]",
		},
		{
			name: "53/TCP whatever its name", ports: []corev1.ServicePort{port("dns-tcp", 5300, "TCP"), port("other", 53, "TCP")},
			ends: []is{{}}, want: "[10.1.0.1:3] [10.0.0.10:53]",
		},
		{
			name: "a port by name", ports: []corev1.ServicePort{port("other", 53, "UDP"), port("dns-tcp", 5300, "TCP")},
			ends: []is{{}}, want: "[10.1.0.1:2] [10.0.0.10:5300]",
		},
		{name: "no port", ports: []corev1.ServicePort{port("dns", 53, "UDP")}, ends: []is{{}}, want: "[] []"},
		{name: "a port not in the slice", ports: []corev1.ServicePort{port("gone", 53, "TCP")}, ends: []is{{}}, want: "[] [10.0.0.10:53]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			withHarness(t, func(w *harness) {
				reports := w.watchService()
				w.config.Store = nil
				es := dnsSlice("dns-1", map[string]int32{"http": 1, "dns-tcp": 2, "other": 3})
				for i, conditions := range tt.ends {
					es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
						Addresses: []string{fmt.Sprintf("10.1.0.%d", i+1)}, Conditions: conditions,
					})
				}
				if tt.ports == nil {
					tt.ports = []corev1.ServicePort{port("dns-tcp", 53, "")}
				}
				w.server.Put(dnsService("10.0.0.10", tt.ports...))
				w.server.Put(es)
				w.start()
				w.wantReports(reports, tt.want)
				if !w.isReady() || !w.watch.Stats().ServiceWatch.Synced {
					t.Errorf("not ready: %+v", w.watch.Stats())
				}
			})
		})
	}
}

// TestServiceWatchZones checks an endpoint's topology zone and a change of it.
func TestServiceWatchZones(t *testing.T) {
	withHarness(t, func(w *harness) {
		reports := w.watchService()
		w.config.Store = nil
		slice := func(name string, ends ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
			es := dnsSlice(name, map[string]int32{"dns-tcp": 5354})
			es.Endpoints = ends
			return es
		}
		in := func(addr string, zone *string) discoveryv1.Endpoint {
			return discoveryv1.Endpoint{Addresses: []string{addr}, Zone: zone}
		}
		w.server.Put(slice("dns-1", in("10.1.0.1", new("b")), in("10.1.0.2", nil), in("10.1.0.3", new(""))))
		w.start()
		w.server.Put(slice("dns-2", in("10.1.0.2", new("a")), in("10.1.0.1", nil))) // both slices hold it while they are split
		w.pass(settleTime)
		w.server.Put(slice("dns-2", in("10.1.0.2", new("c"))))
		w.pass(settleTime)
		w.wantReports(reports,
			"[10.1.0.1:5354@b 10.1.0.2:5354 10.1.0.3:5354] []",
			"[10.1.0.1:5354@b 10.1.0.2:5354@a 10.1.0.3:5354] []",
			"[10.1.0.1:5354@b 10.1.0.2:5354@c 10.1.0.3:5354] []",
		)
	})
}

// TestServiceWatchForbidden checks the reports from the slices alone when the Service is forbidden, and none while the server is down.
func TestServiceWatchForbidden(t *testing.T) {
	withHarness(t, func(w *harness) {
		reports := w.watchService()
		w.server.Refuse("services", http.StatusForbidden)
		w.server.Put(dnsSlice("dns-1", map[string]int32{"dns-tcp": 5354}, "10.1.0.1"))
		w.server.Kill()
		w.start()
		w.pass(time.Minute)
		if reports.String() != "" {
			t.Errorf("reported %q before the first state", reports.String())
		}
		w.server.Revive()
		w.pass(2 * resumeTime)
		w.wantReports(reports, "[10.1.0.1:5354] []")
		if s := w.watch.Stats().ServiceWatch; s.Synced || !strings.HasPrefix(s.LastError, "forbidden: ") {
			t.Errorf("counts %+v", s)
		}
		w.server.Kill()
		w.pass(time.Hour)
		w.wantReports(reports, "[10.1.0.1:5354] []")
	})
}
