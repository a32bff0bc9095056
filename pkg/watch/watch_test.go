// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/names/zone"
)

func TestWatchChanges(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.server.Put(serviceObject("web", "10.0.0.1"))
		w.server.Put(serviceObject("db", "None"))
		w.server.Put(sliceObject("db-1", "db", true, "10.1.0.1", "10.1.0.2"))
		w.start()
		if !w.isReady() {
			t.Fatalf("not ready\n%s", w.log.String())
		}
		w.want("web.shop.svc", "10.0.0.1")
		w.want("db.shop.svc", "10.1.0.1 10.1.0.2")
		w.want("other.shop.svc", "NXDOMAIN")

		w.server.Put(serviceObject("other", "10.0.0.2"))
		w.server.Put(serviceObject("web", "10.0.0.3"))
		w.server.Put(sliceObject("db-1", "db", true, "10.1.0.2"))
		w.pass(settleTime)
		w.want("other.shop.svc", "10.0.0.2")
		w.want("web.shop.svc", "10.0.0.3")
		w.want("db.shop.svc", "10.1.0.2")

		w.server.Delete(serviceObject("web", ""))
		w.pass(settleTime)
		w.want("web.shop.svc", "NXDOMAIN")
		for _, resource := range []string{"services", "endpointslices", "namespaces"} {
			if got := w.server.Requests(resource); len(got) != 1 || got[0].Verb != "watchlist" {
				t.Errorf("%s: requests %+v, want one watch with a first list", resource, got)
			}
		}
		if k := w.kind(zone.Services); !k.Synced || k.Events != 5 || k.Failures != 0 || k.LastError != "" {
			t.Errorf("counts %+v", k)
		}
		w.pass(time.Hour)
		w.want("web.shop.svc", "NXDOMAIN")
	})
}
