// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/metrics"
	"github.com/nodecache/node-cache/pkg/probe"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/source"
	"github.com/nodecache/node-cache/pkg/static"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/zone"
)

// number gives every number below v the next value of *last, in the order of the fields.
func number(v reflect.Value, last *int64) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && v.Type().Field(i).Type != reflect.TypeFor[netip.AddrPort]() {
				number(v.Field(i), last)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			number(v.Index(i), last)
		}
	case reflect.Uint32, reflect.Uint64:
		*last++
		v.SetUint(uint64(*last))
	case reflect.Int, reflect.Int64:
		*last++
		v.SetInt(*last)
	default: // no number
	}
}

// numbered is a T whose numbers are first, first+1 and so on, in the order of its fields.
func numbered[T any](first int64) (v T) {
	first--
	number(reflect.ValueOf(&v).Elem(), &first)
	return v
}

// upstreamNamed is a server's Stats numbered from first.
func upstreamNamed(network, addr string, first int64) upstream.ServerStats {
	s := numbered[upstream.ServerStats](first)
	s.Network, s.Addr = network, netip.MustParseAddrPort(addr)
	return s
}

// lastResort is s asked last.
func lastResort(s upstream.ServerStats) upstream.ServerStats {
	s.LastResort = true
	return s
}

// watched is the Stats of a source of all kinds.
func watched() watch.Stats {
	s := watch.Stats{ServiceWatch: watch.ServiceWatchStats{Synced: true}, Requests: 8301, Panics: 8302}
	for i := range zone.Kinds() {
		k := numbered[watch.KindStats](8100 + 50*int64(i))
		k.Kind, k.Synced = zone.Kind(i), true
		s.Kinds = append(s.Kinds, k)
	}
	return s
}

// distinct is a configuration in which no two numbers are the same.
func distinct() metrics.Config {
	return metrics.Config{
		Ready: func() error { return nil },
		Resolve: func() resolve.Stats {
			s := numbered[resolve.Stats](1000)
			s.Total = 1500 * time.Millisecond
			return s
		},
		Cache: func() cache.Stats { return numbered[cache.Stats](2000) },
		Snapshot: func() *snapshot.Stats {
			return &snapshot.Stats{
				Saved: 2101, Failed: 2102, LastSaved: time.Unix(1600000000, 500e6), Bytes: 2103, Duration: 2104, Panics: 2108,
				Loaded: snapshot.Loaded{Outcome: snapshot.OutcomeLoaded, Entries: 2105, Objects: 2106, Age: 2107},
			}
		},
		Memory: func() metrics.Memory { return numbered[metrics.Memory](2200) },
		Upstream: func() []metrics.Route {
			return []metrics.Route{
				{Zone: ".", Stats: upstream.Stats{Panics: 3001, Servers: []upstream.ServerStats{
					upstreamNamed("udp", "192.0.2.1:53", 3100), upstreamNamed("tcp", "192.0.2.1:53", 3200),
				}}},
				{Zone: "example.com.", Stats: upstream.Stats{Panics: 3002, Servers: []upstream.ServerStats{
					upstreamNamed("udp", "[2001:db8::1]:5353", 3300),
				}}},
				{Zone: "cluster.local.", Service: "kube-system/kube-dns", Stats: upstream.Stats{Panics: 3003, Servers: []upstream.ServerStats{
					upstreamNamed("tcp", "10.244.0.2:53", 3400), lastResort(upstreamNamed("tcp", "10.244.1.2:53", 3500)),
				}}},
			}
		},
		Cluster: func() metrics.Cluster {
			held, told := numbered[zone.Stats](8000), watched()
			return metrics.Cluster{Zone: &held, Source: &told}
		},
		Node: func() metrics.Node {
			link, rules := linked(), intercepted()
			return metrics.Node{Link: &link, Intercept: &rules, Mode: "link-local"}
		},
		Probes: func() []metrics.Probe {
			up := numbered[probe.Stats](8600)
			up.Known, up.Up = true, true
			return []metrics.Probe{{Label: "cluster", Stats: up}, {Label: "outside"}}
		},
		Foreign: func() int { return 9500 },
		UDP:     func() []server.UDPStats { return []server.UDPStats{numbered[server.UDPStats](4000)} },
		TCP:     func() []server.TCPStats { return []server.TCPStats{numbered[server.TCPStats](5000)} },
		Admin:   func() admin.Stats { return numbered[admin.Stats](6000) },
		Config: func() metrics.ConfigState {
			return metrics.ConfigState{
				Generation: 7001, LastOK: true, Succeeded: 7002, Failed: 7003, LastSuccess: time.Unix(1700000000, 250e6), Panics: 7004,
			}
		},
		Static: func() *static.Stats {
			s := numbered[static.Stats](7300)
			for i, path := range []string{"/etc/hosts", "/etc/more"} {
				f := numbered[static.FileStats](7310 + 10*int64(i))
				f.Path = path
				s.Files = append(s.Files, f)
			}
			s.Files[1].Err = errors.New("no such file")
			return &s
		},
		Source: func() source.Stats {
			s := numbered[source.Stats](7100)
			s.Kind, s.KubeDNS, s.LastGood, s.Reachable = source.KindConfigMap, true, true, true
			return s
		},
		Handover: func() *handover.Stats {
			s := numbered[handover.Stats](7200)
			s.Taken, s.Listening, s.Given = handover.OutcomeTaken, true, true
			return &s
		},
		Version: "v1.2.3", Commit: "0123abc",
	}
}

// registered is a registry with a collector for cfg.
func registered(t *testing.T, cfg metrics.Config) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(metrics.New(cfg)); err != nil {
		t.Fatal(err)
	}
	return r
}

// gather collects the families of a collector for cfg.
func gather(t *testing.T, cfg metrics.Config) []*dto.MetricFamily {
	t.Helper()
	families, err := registered(t, cfg).Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}
