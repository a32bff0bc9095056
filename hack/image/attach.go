// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Media types of attachments: a bill of materials, a statement without a signature, and one with it.
const (
	bomType       types.MediaType = "application/vnd.cyclonedx+json"
	statementType types.MediaType = "application/vnd.in-toto+json"
	bundleType    types.MediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"
)

// attach makes an artifact that refers to an image or an index, so that a registry lists it among the referrers of that (OCI
// image specification 1.1).
func (o *options) attach(to partial.Describable, kind types.MediaType, data []byte, notes map[string]string) (v1.Image, error) {
	subject, err := partial.Descriptor(to)
	if err != nil {
		return nil, fmt.Errorf("describing what an attachment belongs to: %w", err)
	}
	artifact := mutate.MediaType(mutate.ConfigMediaType(empty.Image, kind), types.OCIManifestSchema1)
	if artifact, err = mutate.AppendLayers(artifact, static.NewLayer(data, kind)); err != nil {
		return nil, fmt.Errorf("adding to an attachment: %w", err)
	}
	all := map[string]string{"org.opencontainers.image.created": o.created.Format(time.RFC3339)}
	maps.Copy(all, notes)
	of := v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size}
	return mutate.Subject(mutate.Annotations(artifact, all), of).(v1.Image), nil
}

// attest makes the attachments of an image's index or a chart that say where it is from, and with a key that it is signed. name is that
// of the repository, and parameters are what it was built with. It returns the statement of the first kind too.
func (o *options) attest(to partial.Describable, name string, parameters map[string]any) (provenance []byte, attached []v1.Image, err error) {
	digest, err := to.Digest()
	if err != nil {
		return nil, nil, fmt.Errorf("computing the digest: %w", err)
	}
	if provenance, err = statement(name, digest, provenanceType, o.provenance(name, parameters)); err != nil {
		return nil, nil, err
	}
	if o.signer == nil {
		artifact, err := o.attach(to, statementType, provenance, map[string]string{"in-toto.io/predicate-type": provenanceType})
		return provenance, []v1.Image{artifact}, err
	}
	signature, err := statement(name, digest, signatureType, struct{}{})
	if err != nil {
		return nil, nil, err
	}
	for _, s := range []struct {
		kind string
		data []byte
	}{{provenanceType, provenance}, {signatureType, signature}} {
		bundle, err := o.signer.statement(s.data)
		if err != nil {
			return nil, nil, err
		}
		notes := map[string]string{"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": s.kind}
		artifact, err := o.attach(to, bundleType, bundle, notes)
		if err != nil {
			return nil, nil, err
		}
		attached = append(attached, artifact)
	}
	return provenance, attached, nil
}
