// SPDX-License-Identifier: Apache-2.0

package status

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/discovery"
	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/watch"
)

func TestKindProblem(t *testing.T) {
	t.Parallel()
	const reach = "check that the API server is reachable from this pod; the agent retries by itself"
	for _, tt := range []struct {
		name  string
		stats watch.KindStats
		want  Problem // zero: none
	}{
		{name: "fresh", stats: watch.KindStats{Synced: true, Age: 90 * time.Second}},
		{
			name: "no response", stats: watch.KindStats{Kind: zone.Services},
			want: Problem{Reason: ObjectsStale, Where: "service", What: "not synced: no response yet", Hint: reach},
		},
		{
			name: "refused", stats: watch.KindStats{Kind: zone.Namespaces, LastError: "unreachable: dial tcp 192.0.2.1:443: connection refused"},
			want: Problem{Reason: ObjectsStale, Where: "namespace", What: "not synced: unreachable: dial tcp 192.0.2.1:443: connection refused", Hint: reach},
		},
		{
			name: "a right is missing", stats: watch.KindStats{Kind: zone.Slices, LastError: "forbidden: not yours"},
			want: Problem{
				Reason: ObjectsStale, Where: "endpointslice", What: "not synced: forbidden: not yours",
				Hint: "grant this process list and watch of endpointslices.discovery.k8s.io",
			},
		},
		{
			name: "credentials refused", stats: watch.KindStats{Kind: zone.Pods, LastError: "unauthorized: token expired"},
			want: Problem{
				Reason: ObjectsStale, Where: "pod", What: "not synced: unauthorized: token expired",
				Hint: "the API server refused the credentials: check the service account or the kubeconfig",
			},
		},
		{
			name: "failed a moment ago", stats: watch.KindStats{Kind: zone.Services, Synced: true, Age: time.Second, LastError: "busy: too many requests"},
			want: Problem{Reason: ObjectsStale, Where: "service", What: "busy: too many requests", Hint: "check the API server's health; the agent retries by itself"},
		},
		{
			name: "a panic", stats: watch.KindStats{Kind: zone.Services, LastError: "internal: recovered from a panic"},
			want: Problem{Reason: ObjectsStale, Where: "service", What: "not synced: internal: recovered from a panic", Hint: "this is a bug: report it with the stack trace in the log"},
		},
		{
			name: "silent for long", stats: watch.KindStats{Kind: zone.Services, Synced: true, Age: 90*time.Second + time.Millisecond},
			want: Problem{Reason: ObjectsStale, Where: "service", What: "not confirmed fresh for 1m30s: no response", Hint: reach},
		},
		{
			name: "away for long", stats: watch.KindStats{Kind: zone.Pods, Synced: true, Age: time.Hour, LastError: "forbidden: not any more"},
			want: Problem{Reason: ObjectsStale, Where: "pod", What: "not confirmed fresh for 1h0m0s: forbidden: not any more", Hint: "grant this process list and watch of pods"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, ok := kindProblem(&tt.stats, 90*time.Second)
			if ok != (tt.want != Problem{}) {
				t.Errorf("found: %t", ok)
			}
			assert.Same(t, "problem", tt.want, got)
		})
	}
}

// TestOversizeProblem names an object that its namespace has no room for.
func TestOversizeProblem(t *testing.T) {
	t.Parallel()
	want := Problem{
		Reason: ObjectsRefused, Where: "endpointslice", What: "2 objects refused, the last is shop/web-1: a namespace may use 1/4 of the Go runtime's memory limit",
		Hint: "check whether that namespace needs so many objects; if so, raise the container's memory limit",
	}
	kinds := []Kind{{Kind: "service"}, {Kind: "endpointslice", KindStats: zone.KindStats{Refused: 2, LastRefused: "shop/web-1"}}}
	got := Problems(&Status{Config: Config{LastOK: true}, Cluster: &Cluster{Kinds: kinds}}, &watch.Stats{}, &config.Cluster{}, nil, nil)
	assert.Same(t, "problems", []Problem{want}, got)
}

// TestPodProblem gives the hint of the source of the pods.
func TestPodProblem(t *testing.T) {
	t.Parallel()
	for source, hint := range map[string]string{
		"": "feature gate PodsAPI", watch.SourceKubelet: "/var/lib/kubelet/pods-api, or set pods.identity to auto", watch.SourceServer: "the API server is reachable",
	} {
		stats := &watch.Stats{PodSource: source, OwnPods: &watch.KindStats{Kind: zone.Pods, LastError: "unreachable: no such file or directory"}}
		got := Problems(&Status{Config: Config{LastOK: true}, Cluster: &Cluster{}}, stats, &config.Cluster{}, nil, nil)
		if len(got) != 1 || got[0].Where != "pods.identity" || !strings.Contains(got[0].Hint, hint) {
			t.Errorf("source %q: got %+v, want the hint %q", source, got, hint)
		}
	}
}

func TestCentralProblem(t *testing.T) {
	t.Parallel()
	one := []Server{{Address: "tcp://192.0.2.1:53"}}
	for _, tt := range []struct {
		name    string
		central *Central
		follow  watch.KindStats
		want    string // what; empty: none
		hint    string
	}{
		{name: "addresses", central: &Central{InSync: true, Endpoints: one}},
		{name: "endpoints", central: &Central{Service: "a/b", InSync: true, Endpoints: one}, follow: watch.KindStats{Synced: true}},
		{
			name: "not stats yet", central: &Central{Service: "a/b"},
			want: "the endpoints of a/b are unknown: no response yet", hint: "check that the API server is reachable",
		},
		{
			name: "a right is missing", central: &Central{Service: "a/b"}, follow: watch.KindStats{LastError: "forbidden: no"},
			want: "the endpoints of a/b are unknown: forbidden: no", hint: "grant this process list and watch of services and endpointslices",
		},
		{
			name: "no such service", central: &Central{Service: "a/b", InSync: true}, follow: watch.KindStats{Synced: true},
			want: "a/b has no ready endpoint and no address", hint: "check that the service exists",
		},
		{
			name: "nothing but the address", central: &Central{Service: "a/b", InSync: true, Endpoints: []Server{{Last: true}}},
			follow: watch.KindStats{Synced: true}, want: "no endpoint of a/b is ready: queries go to its cluster IP", hint: "check that the service's pods",
		},
		{
			name: "the watch fails", central: &Central{Service: "a/b", InSync: true, Endpoints: one},
			follow: watch.KindStats{Synced: true, LastError: "unauthorized: no"},
			want:   "unauthorized: no", hint: "the API server refused the credentials",
		},
		{name: "not looked up yet", central: &Central{Service: "a/b", Endpoints: []Server{{Last: true}}, Discovery: new(discovery.Stats)}},
		{name: "looked up", central: &Central{Service: "a/b", InSync: true, Endpoints: one, Discovery: &discovery.Stats{Synced: true}}},
		{
			name: "not found", central: &Central{Service: "a/b", InSync: true, Endpoints: one, Discovery: &discovery.Stats{Synced: true, LastError: "NXDOMAIN"}},
			want: "the endpoints of a/b cannot be looked up: NXDOMAIN", hint: "check that this Service of cluster.central.headless is headless",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, ok := centralProblem(tt.central, &watch.Stats{ServiceWatch: tt.follow})
			if ok != (tt.want != "") || got.What != tt.want || !strings.HasPrefix(got.Hint, tt.hint) {
				t.Errorf("got %+v, want %q with hint %q", got, tt.want, tt.hint)
			}
		})
	}
}

// TestBlockProblems names the list and the first line that is skipped. Records of RPZ that are not supported are no problem.
// TestDataPlaneProblems: what concerns the Service's address is no problem in mode link-local.
func TestDataPlaneProblems(t *testing.T) {
	t.Parallel()
	const note = "Cilium handles packets to a Service's address before netfilter."
	for _, tt := range []struct {
		name string
		i    Intercept
		want []Problem
	}{
		{name: "a note, link-local", i: Intercept{Mode: config.ModeLinkLocal, Note: note}},
		{
			name: "a note, transparent", i: Intercept{Mode: config.ModeTransparent, Note: note},
			want: []Problem{{Reason: NotIntercepted, Where: "intercept", What: note, Hint: "see the data planes in docs/node.md"}},
		},
		{
			name: "an address that is not local to Cilium", i: Intercept{Mode: config.ModeLinkLocal, Note: note, NotLocal: []netip.Addr{netip.MustParseAddr("169.254.20.10")}},
			want: []Problem{{
				Reason: NotIntercepted, Where: "intercept", Subject: "169.254.20.10",
				What: "Cilium does not take 169.254.20.10 for an address of the node: with BPF host routing queries of pods are lost",
				Hint: `set Cilium's option local-max-addr-scope: "254", or upgrade it to 1.19`,
			}},
		},
		{
			name: "queries of pods that are lost",
			i:    Intercept{Mode: config.ModeLinkLocal, NotLocal: []netip.Addr{netip.MustParseAddr("169.254.20.10")}, Lost: "Cilium 1.15.19 does not take it"},
			want: []Problem{{
				Reason: NotIntercepted, Where: "intercept", Subject: "169.254.20.10",
				What: "Cilium does not take 169.254.20.10 for an address of the node: queries of pods are lost, and so is their fallback",
				Hint: `set Cilium's option local-max-addr-scope: "254", or upgrade it to 1.19`,
			}},
		},
	} {
		var got problems
		got.addIntercept(&tt.i, false)
		assert.Same(t, tt.name, tt.want, []Problem(got))
	}
}

func TestBlockProblems(t *testing.T) {
	t.Parallel()
	s := Status{Block: &blocklist.Stats{Files: []blocklist.FileStats{
		{Path: "/block/good.txt", Unsupported: 3},
		{Path: "/block/ads.txt", Skipped: 1, FirstSkipped: 17},
		{Path: "/block/gone.txt", LastError: "stat /block/gone.txt: no such file or directory", Names: 7},
		{Path: "/block/never.txt", LastError: "stat /block/never.txt: no such file or directory"},
	}}}
	var got []string
	for _, p := range Problems(&s, new(watch.Stats), new(config.Cluster), nil, nil) {
		if p.Where == "block.files" {
			_, meanwhile, _ := strings.Cut(p.Hint, "; ")
			got = append(got, p.What+"; "+meanwhile)
		}
	}
	assert.Same(t, "problems", []string{
		"1 line of /block/ads.txt invalid, the first is line 17; all other lines are used",
		"stat /block/gone.txt: no such file or directory; its previous content is used meanwhile",
		"stat /block/never.txt: no such file or directory; nothing of it is used",
	}, got)
}

func TestHitRatio(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		count func(count func(source resolve.Source, rcode string, n uint64))
		want  *float64
	}{
		{"nothing", func(func(resolve.Source, string, uint64)) {}, nil},
		{"only refused and shed", func(count func(resolve.Source, string, uint64)) {
			count(resolve.SourceRefused, "REFUSED", 3)
			count(resolve.SourceShed, "SERVFAIL", 3)
			count(resolve.SourceLocal, "NOERROR", 3)
		}, nil},
		{"only failures", func(count func(resolve.Source, string, uint64)) { count(resolve.SourceFailure, "SERVFAIL", 7) }, new(0.0)},
		{"zone and cache are the node's", func(count func(resolve.Source, string, uint64)) {
			count(resolve.SourceZone, "NOERROR", 20)
			count(resolve.SourceZone, "NXDOMAIN", 10)
			count(resolve.SourceCache, "NOERROR", 30)
			count(resolve.SourceCache, "NXDOMAIN", 15)
			count(resolve.SourceUpstream, "NOERROR", 20)
			count(resolve.SourceFailure, "SERVFAIL", 5)
		}, new(0.75)},
		{"a stale answer is no hit", func(count func(resolve.Source, string, uint64)) {
			count(resolve.SourceStale, "NOERROR", 3)
			count(resolve.SourceCache, "NOERROR", 1)
		}, new(0.25)},
		{"the configuration is the node's", func(count func(resolve.Source, string, uint64)) {
			count(resolve.SourceStatic, "NOERROR", 1)
			count(resolve.SourceStatic, "NXDOMAIN", 1)
			count(resolve.SourceUpstream, "NOERROR", 2)
		}, new(0.5)},
		{"the kernel's are the node's", func(count func(resolve.Source, string, uint64)) {
			count(resolve.SourceKernel, "NOERROR", 3)
			count(resolve.SourceUpstream, "NOERROR", 1)
		}, new(0.75)},
		{"a zone that is not ready gives no answer", func(count func(resolve.Source, string, uint64)) {
			count(resolve.SourceZone, "SERVFAIL", 3)
			count(resolve.SourceZone, "NOERROR", 1)
		}, new(0.25)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var st resolve.Stats
			tt.count(func(source resolve.Source, rcode string, n uint64) {
				for i, name := range resolve.Rcodes() {
					if name == rcode {
						st.Responses[source][i] = n
					}
				}
			})
			assert.Same(t, "got", tt.want, hitRatio(&st))
		})
	}
}
