// SPDX-License-Identifier: Apache-2.0

// Package journeys checks docs/journeys.md against the functions that run.
package journeys
