"""Exactly-once delivery: transactions that commit positions, state, dead letters and intents together"""
