// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	"github.com/nodecache/node-cache/pkg/kernelhits"
	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/names/etcd"
	"github.com/nodecache/node-cache/pkg/names/localdata"
	"github.com/nodecache/node-cache/pkg/names/notify"
	"github.com/nodecache/node-cache/pkg/names/push"
	"github.com/nodecache/node-cache/pkg/names/skydns"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/netif"
	"github.com/nodecache/node-cache/pkg/refresh"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/subscribe"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
)

// TestEveryFieldIsASeries changes one number of the Stats after the other: each must show in the scrape, so that no
// package counts in vain.
func TestEveryFieldIsASeries(t *testing.T) {
	t.Parallel()
	base := gather(t, distinct())
	try := func(name string, sample metrics.Sample) {
		if cmp.Equal(render(base), render(gather(t, sample))) {
			t.Errorf("%s: no series changes with it", name)
		}
	}
	unready := distinct()
	unready.NotReady = errors.New("starting")
	try("NotReady", unready)
	restored := distinct()
	restored.Zone.Kinds[zone.Slices].Restored = true
	try("zone.KindStats.Restored", restored)
	transparent := distinct()
	transparent.Mode = "transparent"
	try("Mode", transparent)
	for name, change := range sourceChanges() {
		sample := distinct()
		sample.Watch = &change
		try("watch."+name, sample)
	}
	d := distinct()
	// Texts and open sets are in /status and have no series.
	tryFields(try, "resolve.Stats", d.Resolve, func(s *metrics.Sample, v resolve.Stats) { s.Resolve = v })
	tryFields(try, "cache.Stats", d.Cache, func(s *metrics.Sample, v cache.Stats) { s.Cache = v })
	tryFields(try, "snapshot.Stats", *d.Snapshot, func(s *metrics.Sample, v snapshot.Stats) { s.Snapshot = &v }, "LastError", "Loaded")
	tryFields(try, "snapshot.Loaded", d.Snapshot.Loaded, func(s *metrics.Sample, v snapshot.Loaded) { s.Snapshot.Loaded = v }, "Reason")
	tryFields(try, "Memory", d.Memory, func(s *metrics.Sample, v status.Memory) { s.Memory = v }, "By", "Cache")
	tryFields(try, "server.UDPStats", d.UDP[0], func(s *metrics.Sample, v server.UDPStats) { s.UDP = []server.UDPStats{v} })
	tryFields(try, "server.TCPStats", d.TCP[0], func(s *metrics.Sample, v server.TCPStats) { s.TCP = []server.TCPStats{v} })
	tryFields(try, "admin.Stats", d.Admin, func(s *metrics.Sample, v admin.Stats) { s.Admin = v })
	tryFields(try, "secure.Stats", *d.Reviews, func(s *metrics.Sample, v secure.Stats) { s.Reviews = &v })
	tryFields(try, "upstream.ServerStats", d.Routes[1].Stats.Servers[0], func(s *metrics.Sample, v upstream.ServerStats) {
		s.Routes[1].Stats.Servers = []upstream.ServerStats{v}
	}, "LastResort", "Far", "Name", "Limitations", "Cause", "LastError") // the first two: only servers of a service
	tryFields(try, "zone.Stats", *d.Zone, func(s *metrics.Sample, v zone.Stats) { s.Zone = &v })
	tryFields(try, "netif.Stats", linked(), func(s *metrics.Sample, v netif.Stats) { s.Link = &v }, "Name", "Reason")
	tryFields(try, "intercept.Stats", intercepted(), func(s *metrics.Sample, v intercept.Stats) { s.Intercept = &v },
		"NewOwner", "NoneHeldFor")
	tryFields(try, "probe.Stats", d.Probes[0], func(s *metrics.Sample, v healthcheck.Stats) {
		s.Probes = []healthcheck.Stats{v, {Label: "outside"}}
	}, "Label", "Server", "Question", "Last", "Row", "LastError")
	tryFields(try, "source.Status", d.Source, func(s *metrics.Sample, v configsource.Status) { s.Source = v },
		"Name", "KubeDNS", "LastGood", "Saved", "SaveError", "Problem")
	for i := range *d.Pods["shop"] {
		asked := distinct()
		asked.Pods["shop"][i]++
		try(fmt.Sprint("pods.Counts ", i), asked)
	}
	tryFields(try, "dnstap.Stats", *d.Dnstap, func(s *metrics.Sample, v dnstap.Stats) { s.Dnstap = &v })
	tryFields(try, "notify.Stats", *d.Notify, func(s *metrics.Sample, v notify.Stats) { s.Notify = &v }, "Servers")
	tryFields(try, "push.Stats", *d.Push, func(s *metrics.Sample, v push.Stats) { s.Push = &v })
	tryFields(try, "subscribe.Stats", *d.Subscribe, func(s *metrics.Sample, v subscribe.Stats) { s.Subscribe = &v }, "Server", "Since", "Why")
	alone := distinct()
	alone.Source.KubeDNS = ""
	try("source.Status.KubeDNS", alone)
	tryFields(try, "refresh.Answer", d.Keep[0], func(s *metrics.Sample, v refresh.Answer) {
		s.Keep = []refresh.Answer{v, d.Keep[1]}
	}, "Type", "State", "Local", "Left", "Asked") // these are in /status
	tryFields(try, "static.Stats", *d.Static, func(s *metrics.Sample, v localdata.Stats) { s.Static = &v }, "Files")
	tryFields(try, "static.FileStats", d.Static.Files[0], func(s *metrics.Sample, v localdata.FileStats) { s.Static.Files[0] = v })
	tryFields(try, "block.Stats", *d.Block, func(s *metrics.Sample, v blocklist.Stats) { s.Block = &v }, "Files")
	tryFields(try, "block.FileStats", d.Block.Files[0], func(s *metrics.Sample, v blocklist.FileStats) { s.Block.Files[0] = v }, "Exceptions", "FirstSkipped", "Bytes", "Age") // the sample of TestValues has the age
	tryFields(try, "etcd.Stats", *d.Etcd, func(s *metrics.Sample, v etcd.Stats) { s.Etcd = &v }, "Stats", "LastError", "Panics")
	tryFields(try, "skydns.Stats", d.Etcd.Stats, func(s *metrics.Sample, v skydns.Stats) { s.Etcd.Stats = v }, "Why")
	away := distinct()
	away.Etcd.LastError = "lost"
	try("etcd.Stats.LastError", away)
	unread := distinct()
	unread.Static.Files[0].LastError = "lost"
	try("static.FileStats.LastError", unread)
	gone := distinct()
	gone.Block.Files[0].LastError = "lost"
	try("block.FileStats.LastError", gone)
	tryFields(try, "handover.Stats", *d.Handover, func(s *metrics.Sample, v handover.Stats) { s.Handover = &v },
		"From", "WaitsFor", "Why", "To", "GivenAt", "LastError")
	tryFields(try, "status.Kernel", *d.Kernel, func(s *metrics.Sample, v status.Kernel) { s.Kernel = &v }, "Hook", "FullAgo")
	tryFields(try, "kernel.Stats", d.Kernel.Stats, func(s *metrics.Sample, v kernelhits.Stats) { s.Kernel.Stats = v }, "Hits") // responses_total has the hits
	tryFields(try, "Config", d.Config, func(s *metrics.Sample, v metrics.Config) { s.Config = v })
}

// tryFields tries a sample for each field of v but some, in which set has put v with another value there.
func tryFields[T any](
	try func(string, metrics.Sample), name string, v T, set func(*metrics.Sample, T), without ...string,
) {
	for field, change := range changesBut(v, without...) {
		sample := distinct()
		set(&sample, change)
		try(name+"."+field, sample)
	}
}

// changes is, for each field of v, v with another value there.
func changes[T any](v T) map[string]T {
	list := map[string]T{}
	for i := range reflect.TypeFor[T]().NumField() {
		other := v
		field := reflect.ValueOf(&other).Elem().Field(i)
		switch field.Interface().(type) {
		case string:
			field.SetString("tls")
		case netif.Kind:
			field.SetString(string(netif.Loopback))
		case bool:
			field.SetBool(!field.Bool())
		case time.Time:
			field.Set(reflect.ValueOf(time.Unix(1, 0)))
		case []string, []netip.Addr, []netip.AddrPort, []intercept.LeaseStats:
			field.SetZero()
		case netip.AddrPort:
			field.Set(reflect.ValueOf(netip.MustParseAddrPort("192.0.2.99:53")))
		default:
			last := int64(90000)
			number(field, &last)
		}
		list[reflect.TypeFor[T]().Field(i).Name] = other
	}
	return list
}

// sourceChanges is, for each number and truth of watched, what it is with another one.
func sourceChanges() map[string]watch.Stats {
	list := map[string]watch.Stats{}
	for name, change := range changes(watched()) {
		if name != "Kinds" && name != "ServiceWatch" && name != "OwnPods" && name != "PodSource" { // below; the last is a text for /status
			list["Stats."+name] = change
		}
	}
	for name, change := range changes(watched().Kinds[1]) {
		if !slices.Contains([]string{"LastError", "FirstInvalid", "Kind", "Newest", "UpTo"}, name) { // texts for /status; a label; for subscribers
			s := watched()
			s.Kinds[1] = change
			list["KindStats."+name] = s
		}
	}
	s := watched()
	s.OwnPods = nil
	list["Stats.OwnPods"] = s
	s = watched()
	s.ServiceWatch.Synced = false
	list["ServiceWatchStats.Synced"] = s
	return list
}

// changesBut is changes without the fields of some names.
func changesBut[T any](v T, without ...string) map[string]T {
	list := changes(v)
	for _, name := range without {
		delete(list, name)
	}
	return list
}
