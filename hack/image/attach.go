// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Media types of the attachment: the image specification's for "no configuration", and CycloneDX's own.
const (
	emptyType types.MediaType = "application/vnd.oci.empty.v1+json"
	bomType   types.MediaType = "application/vnd.cyclonedx+json"
)

// attach adds a variant's bill of materials to a layout as an artifact that refers to the variant's image, so that a
// registry lists it among the image's referrers (OCI image specification 1.1).
func attach(to layout.Path, o *options, v *variant) error {
	subject, err := partial.Descriptor(v.image)
	if err != nil {
		return fmt.Errorf("describing the image: %w", err)
	}
	config, err := blob(to, emptyType, []byte("{}"))
	if err != nil {
		return err
	}
	bill, err := blob(to, bomType, v.bill)
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(&v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		ArtifactType:  string(bomType),
		Config:        config,
		Layers:        []v1.Descriptor{bill},
		Subject:       &v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size},
		Annotations:   map[string]string{"org.opencontainers.image.created": o.created.Format(time.RFC3339)},
	})
	if err != nil {
		return fmt.Errorf("writing the attachment: %w", err)
	}
	descriptor, err := blob(to, types.OCIManifestSchema1, manifest)
	if err != nil {
		return err
	}
	descriptor.ArtifactType = string(bomType)
	return to.AppendDescriptor(descriptor)
}

// blob puts data into a layout and describes it.
func blob(to layout.Path, kind types.MediaType, data []byte) (v1.Descriptor, error) {
	digest, size, err := v1.SHA256(bytes.NewReader(data))
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("computing a digest: %w", err)
	}
	if err := to.WriteBlob(digest, io.NopCloser(bytes.NewReader(data))); err != nil {
		return v1.Descriptor{}, fmt.Errorf("writing a blob: %w", err)
	}
	return v1.Descriptor{MediaType: kind, Digest: digest, Size: size}, nil
}
