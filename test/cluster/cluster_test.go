// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/kubetest"
)

// limit bounds each wait for the cluster. A machine that runs other tests is slow.
const limit = time.Minute

// account is a user with the rights that a test gives it, as the service account of a pod.
const account = "system:serviceaccount:kube-system:node-cache"

// TestCluster runs the tests that leave the API server in peace, each with objects and agents of its own, at one cluster.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t, kubetest.Options{Programs: programs, Users: []string{account}})
	openShop(t, c)
	tests := []struct {
		name string
		test func(*testing.T, *kubetest.Cluster)
	}{
		{"rights", testPermissions},
		{"frozen watch", testFrozenWatch},
		{"frozen connection", testFrozenConnection},
		{"changes", testChanges},
		{"reload", testReload},
		{"node zone", testNodeZone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.test(t, c)
		})
	}
}
