// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The cluster of the zone's loads: services with one address each, in a folder of YAML objects.
const (
	manifestsDir = "manifests"
	namespaces   = 20

	upstreamSuffix = ".bench.test"
	clusterSuffix  = ".svc.cluster.local"
)

// services turns the hosts of hit queries into the services of the same rank: the skew stays.
func (w *workload) services(hits []string) []string {
	names := make([]string, len(hits))
	for i, name := range hits {
		names[i] = strings.TrimSuffix(name, upstreamSuffix) + clusterSuffix
	}
	return names
}

// searches asks for external names behind each of the three suffixes that a pod's search list has, in turn: what one
// look-up of an external name brings to a server of the cluster's zone.
func (w *workload) searches() []string {
	names := make([]string, 0, zipfLines)
	for len(names) < zipfLines {
		external := w.external()
		for _, suffix := range []string{".default.svc.cluster.local", ".svc.cluster.local", ".cluster.local"} {
			names = append(names, external+suffix)
		}
	}
	return names
}

// writeManifests writes a file for each namespace, with its services.
func writeManifests(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("creating a folder: %w", err)
	}
	for n := range namespaces {
		documents := []string{fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: ns-%d}\n", n)}
		for i := n; i < hosts; i += namespaces {
			documents = append(documents, service(i))
		}
		path := filepath.Join(dir, fmt.Sprintf("ns-%d.yaml", n))
		if err := os.WriteFile(path, []byte(strings.Join(documents, "---\n")), 0o600); err != nil {
			return fmt.Errorf("writing a manifest: %w", err)
		}
	}
	return nil
}

func service(i int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: svc-%d, namespace: ns-%d}
spec:
  clusterIP: 10.96.%d.%d
  ports: [{name: http, port: 80}, {name: metrics, port: 9090}]
`, i, i%namespaces, i>>8, i&255)
}
