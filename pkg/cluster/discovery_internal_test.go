// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

// TestServiceAddresses takes the address of the resolver's Service from the configuration or the environment of the pod.
func TestServiceAddresses(t *testing.T) {
	of := config.Central{Service: config.ServiceName{Namespace: "kube-system", Name: "node-cache-resolver"}, Headless: config.ServiceName{Namespace: "kube-system", Name: "r"}}
	fixed := config.Central{Addresses: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.9:5353")}, Headless: of.Headless}
	for _, tt := range []struct {
		name            string
		central         config.Central
		namespace, host string
		want            string // the addresses, or part of the error
	}{
		{"configured", fixed, "", "10.96.0.53", "[10.96.0.9:5353]"},
		{"of the pod's namespace", of, "kube-system", "10.96.0.53", "[10.96.0.53:53]"},
		{"IPv6", of, "kube-system", "fd00::53", "[[fd00::53]:53]"},
		{"the Service of this name in another namespace", of, "tenant", "10.96.0.66", `unknown in the namespace "tenant"`},
		{"not in a pod", of, "", "", `unknown in the namespace ""`},
		{"no Service, or no links", of, "kube-system", "", "NODE_CACHE_RESOLVER_SERVICE_HOST has no address"},
		{"no address", of, "kube-system", "None", "NODE_CACHE_RESOLVER_SERVICE_HOST has no address"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("POD_NAMESPACE", tt.namespace)
			t.Setenv("NODE_CACHE_RESOLVER_SERVICE_HOST", tt.host)
			got, err := serviceAddresses(&tt.central)
			if err != nil {
				assert.Same(t, "names the cause: "+err.Error(), true, strings.Contains(err.Error(), tt.want))
				return
			}
			assert.Same(t, "addresses", tt.want, fmt.Sprint(got))
		})
	}
}
