// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/admin/metrics"
	"github.com/nodecache/node-cache/pkg/admin/secure"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/configsource"
	"github.com/nodecache/node-cache/pkg/dnstap"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/healthcheck"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/names/etcd"
	"github.com/nodecache/node-cache/pkg/names/localdata"
	"github.com/nodecache/node-cache/pkg/names/notify"
	"github.com/nodecache/node-cache/pkg/names/push"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/netif"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/refresh"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/subscribe"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/wire"
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
	case reflect.Float64:
		*last++
		v.SetFloat(float64(*last))
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
	s := watch.Stats{ServiceWatch: watch.KindStats{Synced: true}, Requests: 8301, Panics: 8302}
	for i := range zone.Kinds() {
		k := numbered[watch.KindStats](8100 + 50*int64(i))
		k.Kind, k.Synced = zone.Kind(i), true
		s.Kinds = append(s.Kinds, k)
	}
	own := numbered[watch.KindStats](8450)
	own.Synced = true
	s.OwnPods = &own
	return s
}

// distinct is a sample in which no two numbers are the same.
func distinct() metrics.Sample {
	held, source, link, rules := numbered[zone.Stats](8000), watched(), linked(), intercepted()
	s := metrics.Sample{
		Version: "v1.2.3", Commit: "0123abc", Node: "worker-3", Cluster: "west",
		Resolve: numbered[resolve.Stats](1000),
		Cache:   numbered[cache.Stats](2000),
		Snapshot: &snapshot.Stats{
			Saved: 2101, Failed: 2102, LastSaved: time.Unix(1600000000, 500e6), Bytes: 2103, Duration: 2104, Panics: 2108,
			Loaded: snapshot.Loaded{Outcome: snapshot.OutcomeLoaded, Entries: 2105, Objects: 2106, Age: 2107},
		},
		Memory: numbered[status.Memory](2200),
		Routes: []metrics.Route{
			{Zone: ".", Stats: upstream.Stats{Panics: 3001, Servers: []upstream.ServerStats{
				upstreamNamed("udp", "192.0.2.1:53", 3100), upstreamNamed("tcp", "192.0.2.1:53", 3200),
			}}},
			{Zone: "example.com.", Stats: upstream.Stats{Panics: 3002, Servers: []upstream.ServerStats{
				upstreamNamed("udp", "[2001:db8::1]:5353", 3300),
			}}},
			{Zone: "cluster.local.", Service: "kube-system/kube-dns", Stats: upstream.Stats{Panics: 3003, Servers: []upstream.ServerStats{
				upstreamNamed("tcp", "10.244.0.2:53", 3400), lastResort(upstreamNamed("tcp", "10.244.1.2:53", 3500)),
			}}},
		},
		Zone: &held, Watch: &source,
		Link: &link, Intercept: &rules, Mode: "link-local",
		Dnstap:   &dnstap.Stats{Sent: 9951, Dropped: 9952},
		Problems: map[status.Reason]int{status.RouteDown: 1, status.UpstreamDown: 2},
		Notify:   &notify.Stats{Answered: 9961, Failed: 9962},
		Push: &push.Stats{
			Sessions: 9971, Subscriptions: 9972, Names: 9973, Bytes: 9974, Pushes: 9975, Pushed: 9976,
			Refused: push.Refused{Name: 9977, Count: 9978, Memory: 9979, Malformed: 9980}, Ended: push.Ended{Protocol: 9981, Slow: 9982, Memory: 9983}, Panics: 9984,
		},
		Pods:      map[string]*pods.Counts{"shop": new(numbered[pods.Counts](9900))},
		Probes:    []healthcheck.Stats{numbered[healthcheck.Stats](8600), {Label: "outside"}},
		Foreign:   9500,
		UDP:       []server.UDPStats{numbered[server.UDPStats](4000)},
		TCP:       []server.TCPStats{numbered[server.TCPStats](5000)},
		Admin:     numbered[admin.Stats](6000),
		Reviews:   new(numbered[secure.Stats](6100)),
		Subscribe: &subscribe.Stats{Server: "push://10.244.0.2:53", Names: 19971, Sessions: 19972, Asked: 19973, Kept: 19974, Events: 19975, Repeated: 19976, Late: 19977, Full: 19978, Refused: 19979},
		Config: metrics.Config{
			Generation: 7001, LastOK: true, Succeeded: 7002, Failed: 7003, LastSuccess: time.Unix(1700000000, 250e6), Panics: 7004,
		},
		Source: configured(),
		Keep: []refresh.Answer{
			{Name: "registry.example.com.", Type: wire.TypeA, Held: true, Age: 7701 * time.Second}, {Name: "registry.example.com.", Type: wire.TypeAAAA},
		},
		Static: answers(),
		Block:  blocked(),
		Etcd:   new(numbered[etcd.Stats](7600)),
	}
	s.Etcd.Synced = true
	for i := range s.Resolve.Durations {
		s.Resolve.Durations[i].Total = time.Duration(i+1) * 1500 * time.Millisecond
	}
	s.Probes[0].Label, s.Probes[0].Known, s.Probes[0].Up = "cluster", true, true
	h := numbered[handover.Stats](7200)
	h.Taken, h.Listening, h.Given = handover.OutcomeTaken, true, true
	s.Handover = &h
	k := numbered[status.Kernel](9970)
	k.State, k.Failed = status.KernelOn, []string{"veth1: busy"}
	s.Kernel = &k
	return s
}

// answers is the Stats of two hosts files, the second unreadable.
func answers() *localdata.Stats {
	s := numbered[localdata.Stats](7300)
	for i, path := range []string{"/etc/hosts", "/etc/more"} {
		f := numbered[localdata.FileStats](7310 + 10*int64(i))
		f.Path = path
		s.Files = append(s.Files, f)
	}
	s.Files[1].LastError = "no such file"
	return &s
}

// blocked is the Stats of two block lists, the second unreadable.
func blocked() *blocklist.Stats {
	s := numbered[blocklist.Stats](7700)
	for i, path := range []string{"/block/ads.txt", "/block/malware.rpz"} {
		f := numbered[blocklist.FileStats](7710 + 20*int64(i))
		f.Path, f.Age = path, float64(7720+20*i)
		s.Files = append(s.Files, f)
	}
	s.Files[1].LastError = "no such file"
	return &s
}

// configured is the Stats of a configuration's source.
func configured() configsource.Status {
	s := numbered[configsource.Status](7100)
	s.Kind, s.KubeDNS, s.LastGoodInUse, s.Reachable = configsource.KindConfigMap, "/folder", true, true
	return s
}

// collector is a collector that always reads the same sample.
func collector(s metrics.Sample) *metrics.Collector {
	return metrics.New(func() metrics.Sample { return s })
}

// registered is a registry with a collector that reads a sample.
func registered(t *testing.T, read func() metrics.Sample) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	assert.NoError(t, r.Register(metrics.New(read)))
	return r
}

// gather collects the families of a sample.
func gather(t *testing.T, s metrics.Sample) []*dto.MetricFamily {
	t.Helper()
	families, err := registered(t, func() metrics.Sample { return s }).Gather()
	assert.NoError(t, err)
	return families
}

var (
	own4 = netip.MustParseAddr("169.254.20.10")
	own6 = netip.MustParseAddr("fd00::53")
)

// linked is the Stats of a link of which nothing is at its zero value but what went wrong.
func linked() netif.Stats {
	return netif.Stats{
		Kind: "bridge", Reason: "no dummy", Held: []netip.Addr{own4, own6},
		Missing: []string{"fd00::54: taken"}, Duplicates: []string{"169.254.20.10: eth0"},
		Repairs: 8401, Contested: true, StoodDown: true,
	}
}

// intercepted is the Stats of a keeper of which nothing is at its zero value but what went wrong.
func intercepted() intercept.Stats {
	s := numbered[intercept.Stats](8500)
	s.Backend = "nftables"
	s.Leases = []intercept.LeaseStats{
		{Address: own4, Held: true, Fallback: intercept.FallbackBroken}, {Address: netip.MustParseAddr("169.254.20.11"), Held: true, Fallback: intercept.FallbackWorks}, {Address: own6, Held: true, Fallback: intercept.FallbackWorks}, {Address: netip.MustParseAddr("fd00::54")},
	}
	s.Fallback = make([]netip.AddrPort, 3)
	s.Released, s.Standby, s.StoodDown = true, true, true
	return s
}
