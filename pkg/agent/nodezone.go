// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/nodecache/node-cache/pkg/watch"
)

// topologyZone is the zone of this node as far as it is known.
func (c *cluster) topologyZone(setting string) string {
	if setting != "auto" {
		return setting
	}
	if learned := c.nodeZone.Load(); learned != nil {
		return *learned
	}
	return os.Getenv("NODE_ZONE")
}

// How often the API server is asked for this node's topology zone. A right that is missing is granted seldom, and
// there are many nodes.
const (
	zoneAgain    = 30 * time.Second
	zoneAgainMax = 16 * time.Minute // the longest wait, after doubling
)

// learnNodeZone asks the API server for this node's topology zone until it says,
// and then has the zone answer, and the central resolver's endpoints be chosen, by it.
func (a *Agent) learnNodeZone(ctx context.Context) {
	for wait := zoneAgain; ; {
		r := a.running.Load()
		if w, ok := r.asksForZone(); ok {
			name, err := w.NodeZone(ctx)
			if err == nil {
				r.cluster.nodeZone.Store(&name)
				a.log.InfoContext(ctx, "topology zone of this node", "zone", cmp.Or(name, "none"))
				a.request(request{replan: true})
				wait = zoneAgain
			} else {
				a.log.DebugContext(ctx, "asking for this node's topology zone", "err", err)
				wait = min(2*wait, zoneAgainMax)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// asksForZone gives the watch to ask for this node's topology zone, if there is need and a way.
func (r *running) asksForZone() (*watch.Watch, bool) {
	c := r.cluster
	if c == nil || r.config.Cluster.NodeZone != "auto" || os.Getenv("NODE_ZONE") != "" || os.Getenv("NODE_NAME") == "" {
		return nil, false
	}
	w, ok := c.source.(*watch.Watch)
	return w, ok && c.nodeZone.Load() == nil && (c.store != nil || c.central != nil && c.near != nil)
}
