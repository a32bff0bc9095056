// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/netip"

	"github.com/nodecache/node-cache/pkg/cluster"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/watch"
)

// readCilium reads Cilium's settings from the API server. It returns nil if there are none, or no API server.
func readCilium(ctx context.Context, c *cluster.Cluster) (*dataplane.CiliumSettings, error) {
	w, ok := c.Source.(*watch.Watch)
	if !ok {
		return nil, nil //nolint:nilnil // unknown is no error
	}
	image, options, found, err := w.CiliumObjects(ctx)
	if err != nil || !found {
		return nil, err
	}
	return &dataplane.CiliumSettings{Version: dataplane.ImageVersion(image), Options: options}, nil
}

// recentClients returns the clients of the last minutes.
func recentClients(r *resolve.Resolver) (list []netip.Addr) {
	clients, _, _ := r.Recent()
	for _, c := range clients {
		list = append(list, c.Client)
	}
	return list
}
