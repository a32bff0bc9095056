// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// push sends the image or the chart of an archive to a registry under a name with a tag, and prints its reference by digest. The tag comes
// last, so that it never names one without its attachments.
func push(ctx context.Context, archive, to string, stdout io.Writer) error {
	tag, err := name.NewTag(to, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("reading the name: %w", err)
	}
	folder, err := os.MkdirTemp("", "node-cache-push-")
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if err := extract(archive, folder); err != nil {
		return err
	}
	content, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		return fmt.Errorf("reading the archive: %w", err)
	}
	manifest, err := content.IndexManifest()
	if err != nil {
		return fmt.Errorf("reading the archive: %w", err)
	}
	pusher, err := remote.NewPusher(remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return fmt.Errorf("preparing the push: %w", err)
	}
	var first remote.Taggable
	for _, d := range manifest.Manifests {
		one, err := entry(content, &d)
		if err != nil {
			return fmt.Errorf("reading the archive: %w", err)
		}
		if first == nil {
			first = one
		}
		if err := pusher.Push(ctx, tag.Digest(d.Digest.String()), one); err != nil {
			return fmt.Errorf("pushing: %w", err)
		}
	}
	if first == nil {
		return errors.New("reading the archive: neither image nor chart in it")
	}
	if err := pusher.Push(ctx, tag, first); err != nil {
		return fmt.Errorf("pushing: %w", err)
	}
	_, err = fmt.Fprintf(stdout, "%s@%s\n", tag, manifest.Manifests[0].Digest)
	return err
}

// entry returns what an entry of the archive describes: an image's index, a chart or an attachment.
func entry(content v1.ImageIndex, d *v1.Descriptor) (remote.Taggable, error) {
	if d.MediaType.IsIndex() {
		return content.ImageIndex(d.Digest)
	}
	return content.Image(d.Digest)
}
