// SPDX-License-Identifier: Apache-2.0

package zone

// The zone of a cluster set follows the multicluster DNS specification 1.0.0 (KEP-1645), as doc.go says.

// inSet reports whether the zone is that of a cluster set.
func (z *Zone) inSet() bool { return z.cfg.Cluster != nil }

// namesCluster reports whether the labels left of the service are those of an endpoint and its cluster. With an underscore
// they are those of a port and its protocol.
func (r *reply) namesCluster(left int) bool {
	return r.z.inSet() && left == 2 && r.label(0)[0] != '_' && r.label(1)[0] != '_'
}

// clusterNode reports whether the name is that of a cluster below a headless service: endpoints have names below it.
func (r *reply) clusterNode(n *node) bool {
	sel := r.selectAll(n)
	sel.cluster = r.labelRange(0, 1)
	return sel.notEmpty()
}

// hasNamespace reports whether the namespace, whose label is in wire form, exists here or in the set.
func (z *Zone) hasNamespace(label []byte) bool {
	n, _ := z.cfg.Store.findNamespace(label)
	if !n.exists() && z.inSet() {
		n, _ = z.cfg.Cluster.findNamespace(label)
	}
	return n.exists()
}

// namespaceStore returns the store that has the Namespace objects.
func (z *Zone) namespaceStore() *Store {
	if z.inSet() {
		return z.cfg.Cluster
	}
	return z.cfg.Store
}
