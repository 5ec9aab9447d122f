// `plan validate`: truth documents against predictions.
