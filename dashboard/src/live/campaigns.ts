// The phases of watched campaigns: the reducer of model/phases.ts, one entry per campaign.

import { createSlice, type PayloadAction } from "@reduxjs/toolkit";
import type { PhaseTrigger, Status } from "../api/campaigns";
import { type Campaign, drop, event, press, snapshot } from "../model/phases";
import { framesReceived } from "./slice";

interface Watched {
  byId: Record<string, Campaign>;
  /** Campaigns that this tenant does not have. */
  missing: Record<string, true>;
}

const initialState: Watched = { byId: {}, missing: {} };

export const watched = createSlice({
  name: "phases",
  initialState,
  reducers: {
    snapshotTaken(state, { payload }: PayloadAction<{ id: string; status: Status }>) {
      state.byId[payload.id] = snapshot(payload.status);
      delete state.missing[payload.id];
    },
    campaignMissing(state, { payload }: PayloadAction<string>) {
      state.missing[payload] = true;
      delete state.byId[payload];
    },
    pressed(state, { payload }: PayloadAction<{ id: string; phase: string; by: PhaseTrigger }>) {
      const campaign = state.byId[payload.id];
      if (campaign) state.byId[payload.id] = press(campaign, payload.phase, payload.by);
    },
    dropped(state, { payload }: PayloadAction<{ id: string; phase: string }>) {
      const campaign = state.byId[payload.id];
      if (campaign) state.byId[payload.id] = drop(campaign, payload.phase);
    },
    forgotten: () => initialState,
  },
  extraReducers: (builder) => {
    builder.addCase(framesReceived, (state, { payload }) => {
      for (const frame of payload) {
        if (frame.kind !== "campaign") continue;
        const campaign = state.byId[frame.event.campaignId];
        if (campaign) state.byId[frame.event.campaignId] = event(campaign, frame.event);
      }
    });
  },
});

export const { snapshotTaken, campaignMissing, pressed, dropped } = watched.actions;
