// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/watch/watchtest"
)

// TestWatches checks the requests to the server.
func TestWatches(t *testing.T) {
	t.Parallel()
	const live = "status.phase!=Succeeded,status.phase!=Failed,status.phase!=Unknown"
	tests := []struct {
		name   string
		change func(cfg *watch.Config)
		want   []string // resource, namespace, labels, fields; sorted
	}{
		{
			name: "headless", change: func(cfg *watch.Config) { cfg.Endpoints = watch.EndpointsHeadless },
			want: []string{"endpointslices||service.kubernetes.io/headless|", "namespaces|||", "services|||"},
		},
		{
			name: "none", change: func(cfg *watch.Config) { cfg.Endpoints = watch.EndpointsNone },
			want: []string{"namespaces|||", "services|||"},
		},
		{
			name: "pods and selectors",
			change: func(cfg *watch.Config) {
				cfg.Endpoints, cfg.Pods, cfg.ServiceSelector, cfg.NamespaceSelector = watch.EndpointsHeadless, true, "app=web", "team in (a,b)"
			},
			want: []string{"endpointslices||app=web,service.kubernetes.io/headless|", "namespaces||team in (a,b)|", "pods||app=web|" + live, "services||app=web|"},
		},
		{
			name: "namespaces", change: func(cfg *watch.Config) { cfg.Namespaces = []string{"shop", "default"} },
			want: []string{
				"endpointslices|default||", "endpointslices|shop||", "namespaces|||metadata.name=default", "namespaces|||metadata.name=shop",
				"services|default||", "services|shop||",
			},
		},
		{
			name: "follow", change: func(cfg *watch.Config) {
				cfg.Store, cfg.ServiceWatch = nil, &watch.ServiceWatch{Namespace: "kube-system", Service: "kube-dns"}
			},
			want: []string{"endpointslices|kube-system|kubernetes.io/service-name=kube-dns|", "services|kube-system||metadata.name=kube-dns"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			withHarness(t, func(w *harness) {
				tt.change(&w.config)
				if f := w.config.ServiceWatch; f != nil {
					w.watchService()
					f.Changed = w.config.ServiceWatch.Changed
					w.config.ServiceWatch = f
				}
				w.start()
				var got []string
				for _, r := range w.server.Requests("") {
					got = append(got, strings.Join([]string{r.Resource, r.Space, r.Selector, r.Fields}, "|"))
				}
				assert.Same(t, "result", tt.want, slices.Sorted(slices.Values(got)))
				if !w.isReady() {
					t.Error("not ready")
				}
			})
		})
	}
}

// TestNamespaces watches two namespaces separately. The state is as old as the older of them.
func TestNamespaces(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.config.Namespaces = []string{"shop", "default"}
		w.server.Put(namespaceObject("hidden"))
		for _, space := range []string{"shop", "default", "hidden"} {
			svc := serviceObject("web", "10.0.0.1")
			svc.Namespace = space
			w.server.Put(svc)
		}
		w.start()
		w.want("web.shop.svc", "10.0.0.1")
		w.want("web.default.svc", "10.0.0.1")
		w.want("web.hidden.svc", "NXDOMAIN")
		for range 5 {
			w.server.Forget()
			w.pass(10 * time.Second)
			w.want("web.shop.svc", "10.0.0.1")
			w.want("web.default.svc", "10.0.0.1")
		}
		w.server.Delete(serviceObject("web", ""))
		w.server.Delete(namespaceObject("shop"))
		w.pass(settleTime)
		w.want("web.shop.svc", "NXDOMAIN")
		w.want("web.default.svc", "10.0.0.1")
		w.wantCalm(3)
	})
}

// TestNamespaceSelector checks that a namespace's contents follow its label.
func TestNamespaceSelector(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.config.NamespaceSelector = "team=a"
		w.server.Put(serviceObject("web", "10.0.0.1"))
		w.start()
		w.want("web.shop.svc", "NXDOMAIN")
		shop := namespaceObject("shop")
		shop.Labels = map[string]string{"team": "a"}
		w.server.Put(shop)
		w.pass(settleTime)
		w.want("web.shop.svc", "10.0.0.1")
		w.server.Put(namespaceObject("shop"))
		w.pass(settleTime)
		w.want("web.shop.svc", "NXDOMAIN")
	})
}

// TestServiceTurnsHeadless changes a service to headless and back, with its slices.
func TestServiceTurnsHeadless(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.config.Endpoints = watch.EndpointsHeadless
		w.server.Put(serviceObject("db", "10.0.0.1"))
		w.server.Put(sliceObject("db-1", "db", false, "10.1.0.1"))
		w.start()
		w.want("db.shop.svc", "10.0.0.1")
		if n := w.store.Stats().Kinds[zone.Slices].Objects; n != 0 {
			t.Errorf("%d slices", n)
		}
		w.server.Delete(serviceObject("db", ""))
		w.server.Put(serviceObject("db", "None"))
		w.server.Put(sliceObject("db-1", "db", true, "10.1.0.1"))
		w.pass(settleTime)
		w.want("db.shop.svc", "10.1.0.1")
		w.server.Put(sliceObject("db-1", "db", false, "10.1.0.1"))
		w.server.Put(serviceObject("db", "10.0.0.2"))
		w.pass(settleTime)
		w.want("db.shop.svc", "10.0.0.2")
		if n := w.store.Stats().Kinds[zone.Slices].Objects; n != 0 {
			t.Errorf("%d slices", n)
		}
	})
}

// TestSliceMoves moves a slice from one service to another, and to none.
func TestSliceMoves(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.server.Put(serviceObject("a", "None"))
		w.server.Put(serviceObject("b", "None"))
		w.server.Put(sliceObject("s", "a", true, "10.1.0.1"))
		w.start()
		w.want("a.shop.svc", "10.1.0.1")
		w.server.Put(sliceObject("s", "b", true, "10.1.0.1"))
		w.pass(settleTime)
		w.want("a.shop.svc", "NXDOMAIN")
		w.want("b.shop.svc", "10.1.0.1")
		ownerless := sliceObject("s", "", true, "10.1.0.1")
		delete(ownerless.Labels, discoveryv1.LabelServiceName)
		w.server.Put(ownerless)
		w.pass(settleTime)
		w.want("b.shop.svc", "NXDOMAIN")
	})
}

func TestPods(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.config.Pods = true
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"}}
		w.server.Put(pod)
		w.start()
		w.want("10-1-0-1.shop.pod", "NXDOMAIN")
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.1.0.1"}}}
		w.server.Put(pod)
		w.pass(settleTime)
		w.want("10-1-0-1.shop.pod", "10.1.0.1")
		pod.Status.Phase = corev1.PodSucceeded
		w.server.Put(pod)
		w.pass(settleTime)
		w.want("10-1-0-1.shop.pod", "NXDOMAIN")
	})
}

// TestChangeTime measures from the slice's own change time.
func TestChangeTime(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.server.Put(serviceObject("db", "None"))
		w.start()
		es := sliceObject("db-1", "db", true, "10.1.0.1")
		es.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Add(-30 * time.Millisecond).Format(time.RFC3339Nano)}
		w.server.Put(es)
		w.pass(settleTime)
		es.Labels["changes"] = "nothing"
		w.server.Put(es)
		w.pass(settleTime)
		k := w.kind(zone.Slices)
		var want watch.Histogram
		for i, bound := range watch.Buckets() {
			if bound == 50*time.Millisecond {
				want.Counts[i], want.Sum = 1, 30*time.Millisecond
			}
		}
		assert.Same(t, "change times", want, k.Change)
		if k.Arrival.Counts[0] != 2 {
			t.Errorf("arrival times %v, want 2 in the first bucket", k.Arrival.Counts)
		}
	})
}

func TestNodeTopology(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.config.NodeName = "n1"
		w.server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "east"}}})
		w.start()
		zone, region, err := w.watch.NodeTopology(w.t.Context())
		if err != nil || zone != "a" || region != "east" {
			t.Errorf("got %q, %q, %v, want a and east", zone, region, err)
		}
		w.server.Kill()
		if _, _, err := w.watch.NodeTopology(w.t.Context()); err == nil || !strings.HasPrefix(err.Error(), "reading node n1: ") {
			t.Errorf("without a server: %v", err)
		}
	})
}

func TestNew(t *testing.T) {
	t.Parallel()
	kubeconfig := watchtest.Kubeconfig(t)
	garbage := filepath.Join(t.TempDir(), "garbage")
	assert.NoError(t, os.WriteFile(garbage, []byte("{"), 0o600))
	absent := filepath.Join(t.TempDir(), "absent")
	pipe := filepath.Join(t.TempDir(), "pipe")
	assert.NoError(t, syscall.Mkfifo(pipe, 0o600))
	large := filepath.Join(t.TempDir(), "large")
	assert.NoError(t, os.WriteFile(large, make([]byte, 1<<20+1), 0o600))
	tests := []struct {
		name   string
		change func(cfg *watch.Config)
		want   string // prefix
		is     error
	}{
		{name: "nothing to do", change: func(cfg *watch.Config) { cfg.Store = nil }, want: "watch: there is nothing to watch"},
		{name: "too strict", change: func(cfg *watch.Config) { cfg.StaleAfter = time.Second }, want: "stale after 1s: must be at least 5s"},
		{name: "selector", change: func(cfg *watch.Config) { cfg.ServiceSelector = "a in" }, want: `parsing the service selector "a in": `},
		{name: "absent kubeconfig", change: func(cfg *watch.Config) { cfg.Kubeconfig = absent }, want: "reading kubeconfig " + absent + ": ", is: fs.ErrNotExist},
		{name: "garbage for kubeconfig", change: func(cfg *watch.Config) { cfg.Kubeconfig = garbage }, want: "reading kubeconfig " + garbage + ": "},
		{name: "pipe for kubeconfig", change: func(cfg *watch.Config) { cfg.Kubeconfig = pipe }, want: "reading kubeconfig " + pipe + ": not a regular file"},
		{name: "folder for kubeconfig", change: func(cfg *watch.Config) { cfg.Kubeconfig = "/" }, want: "reading kubeconfig /: is a directory"},
		{name: "large kubeconfig", change: func(cfg *watch.Config) { cfg.Kubeconfig = large }, want: "reading kubeconfig " + large + ": larger than 1 MiB"},
		{name: "absent context", change: func(cfg *watch.Config) { cfg.Context = "east" }, want: "reading kubeconfig " + kubeconfig + ": context \"east\" does not exist"},
		{name: "no pod", change: func(cfg *watch.Config) { cfg.Kubeconfig = "" }, want: "no kubeconfig is set, and this process does not run in a pod: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := watch.Config{Kubeconfig: kubeconfig, Store: zone.NewStore(), Now: time.Now}
			tt.change(&cfg)
			_, err := watch.New(cfg)
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got %v, want %v", err, tt.is)
			}
		})
	}
}
