// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		options Options
		want    []string // pods of nodes 1 and 9, and the network of node 1
	}{
		{
			name: "one family",
			want: []string{"[10.244.1.0/24]", "[10.244.9.0/24]", "[[map[subnet:10.244.1.0/24]]] [map[dst:0.0.0.0/0]]"},
		},
		{
			name: "two", options: Options{DualStack: true},
			want: []string{
				"[10.244.1.0/24 fd00:10:244:1::/64]", "[10.244.9.0/24 fd00:10:244:9::/64]",
				"[[map[subnet:10.244.1.0/24]] [map[subnet:fd00:10:244:1::/64]]] [map[dst:0.0.0.0/0] map[dst:::/0]]",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var network struct {
				Plugins []struct{ IPAM struct{ Ranges, Routes any } }
			}
			if err := json.Unmarshal([]byte(tt.options.network(1)), &network); err != nil {
				t.Fatal(err)
			}
			ipam := network.Plugins[0].IPAM
			got := []string{fmt.Sprint(tt.options.podsOf(1)), fmt.Sprint(tt.options.podsOf(9)), fmt.Sprint(ipam.Ranges, " ", ipam.Routes)}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			all := []netip.Prefix{netip.MustParsePrefix(podNet), netip.MustParsePrefix(podNet6)}
			for i := 1; i <= 9; i++ {
				for k, pods := range tt.options.podsOf(i) {
					if !all[k].Overlaps(pods) {
						t.Errorf("pods of node %d: %s is not in %s", i, pods, all[k])
					}
				}
			}
		})
	}
}
