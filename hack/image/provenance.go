// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// What statements say of an image or a chart: how it was built, and, as cosign has it, that it is signed.
const (
	provenanceType = "https://slsa.dev/provenance/v1"
	signatureType  = "https://sigstore.dev/cosign/sign/v1"
)

// statement says something of an image or a chart, in the format of in-toto.
func statement(name string, digest v1.Hash, kind string, predicate any) ([]byte, error) {
	data, err := json.Marshal(map[string]any{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       []any{map[string]any{"name": name, "digest": map[string]string{digest.Algorithm: digest.Hex}}},
		"predicateType": kind,
		"predicate":     predicate,
	})
	if err != nil {
		return nil, fmt.Errorf("writing a statement: %w", err)
	}
	return data, nil
}

// provenance says what an image or a chart was built from, and by what. It has no time and no machine: two builds have the same. The bill of
// materials has the modules.
func (o *options) provenance(name string, parameters map[string]any) any {
	const builder = source + "/tree/main/hack/image"
	sources := map[string]any{"uri": "git+" + source}
	if o.revision != "" {
		sources["digest"] = map[string]string{"gitCommit": o.revision}
	}
	external := map[string]any{"name": name, "version": o.version, "created": o.created}
	maps.Copy(external, parameters)
	return map[string]any{
		"buildDefinition": map[string]any{
			"buildType":            builder,
			"externalParameters":   external,
			"resolvedDependencies": []any{sources},
		},
		"runDetails": map[string]any{"builder": map[string]any{"id": builder, "version": map[string]string{"go": runtime.Version()}}},
	}
}
